"""A command checked while it trains: what it records is read and tested as it is written.

The script needs no change; what the invariants are about is recorded of it. Rules between ranks
are tested too, because the traces of all ranks are read. A violation is known when all ranks have
begun the step after it.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tapml.invariants.checking import (
    Checker,
    CheckReport,
    Finding,
    OnViolation,
    grouped,
    report_of,
    said,
    step_text,
)
from tapml.invariants.following import Following
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.launch import Collected, collect
from tapml.invariants.live_page import live_page
from tapml.invariants.needs import needs_of
from tapml.invariants.record import Window
from tapml.invariants.trace import Trace
from tapml.runs.wording import counted


def check_command(
    command: Sequence[str],
    invariants: InvariantSet,
    *,
    eager: bool = False,
    on_violation: OnViolation = "warn",
    port: int | None = None,
    tell: Callable[[str], None] = print,
) -> tuple[Collected, CheckReport | None]:
    """Run a command and test what it trains, step by step.

    Parameters
    ----------
    command
        As of :func:`~tapml.invariants.launch.collect`.
    invariants
        What is to hold.
    eager
        Run without ``torch.compile``.
    on_violation
        ``report``: say nothing while the command runs. ``warn``: `tell` when an invariant is first
        violated. ``stop``: end the command then.
    port
        Serve a page of what is found on this machine while the command runs; 0 takes a free port.
    tell
        Takes lines of text while the command runs.

    Returns
    -------
    collected, report
        How the command ended, and what was found: None if it made no training step. A violation
        ended it if it was stopped.

    Raises
    ------
    InputError
        As of :func:`~tapml.invariants.launch.collect`, or if it cannot listen on the port.
    """
    name = shlex.join(command)
    checker, lock = Checker(invariants), threading.Lock()
    steps = 0
    ranks: tuple[int, ...] = (0,)
    windows: Iterator[Window] = iter(())

    def report() -> CheckReport:
        return report_of(checker, name, steps, ranks)

    def check(window: Window) -> list[Finding]:
        nonlocal steps, ranks
        with lock:
            steps, ranks = max(window.step, 0), tuple(range(len(window.processes)))
            return checker.check(window)

    def look_on(ended: Callable[[], bool]) -> bool:
        nonlocal windows
        windows = following.windows(ended)
        for window in windows:
            new = check(window)
            for cause in grouped(new) if on_violation != "report" else ():
                others = len(cause.findings) - 1
                more = f" (and {counted(others, 'rule')} more)" if others else ""
                tell(f"{said(cause.head)}{more}")
            if new and on_violation == "stop":
                return False
        return True

    def rest(_: Path) -> Trace:
        for window in windows:
            check(window)
        return following.trace()

    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="tapml-invariants-")))
        folder, needs = place / "trace", place / "needs.json"
        following = Following(folder)
        needs.write_bytes(msgspec.json.encode(needs_of(invariants)))
        if port is not None:
            page = live_page(report, lock, port, invariants.invariants)
            tell(f"live page: {stack.enter_context(page)}")
        collected = collect(command, folder, eager=eager, needs=needs, look_on=look_on, read=rest)
        trace, found = collected.trace, None
        if trace is not None:
            found = report_of(checker, name, trace.steps, trace.ranks, trace.notes)
    if found is not None and collected.stopped and found.causes:
        first = step_text(min(cause.first_step for cause in found.causes))
        note = f"the command was ended by a violation in {first}; what came later is not checked"
        found = replace(found, notes=(note,))
    return collected, found
