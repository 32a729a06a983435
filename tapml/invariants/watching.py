"""Checks a run while it trains, in its own process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from tapml.invariants.checking import (
    Checker,
    CheckReport,
    Finding,
    OnViolation,
    check_on_violation,
    report_of,
    said,
)
from tapml.invariants.instrument import Instruments
from tapml.invariants.invariant import FORMAT, InvariantSet, read_set
from tapml.invariants.needs import RANKS, needs_of
from tapml.invariants.record import Assembler, Row, Window
from tapml.invariants.recorder import Recorder
from tapml.invariants.recording import recorded_to
from tapml.invariants.repeating import Repeating
from tapml.invariants.trace import hold_new
from tapml_targets.errors import InputError, MismatchError

# Rules over several ranks need all traces; one process sees its own alone.
_ACROSS: Final = ("CollectivesAgree",)


class InvariantWarning(UserWarning):
    """A training invariant is violated."""


class InvariantViolated(MismatchError):
    """A training invariant is violated, and `on_violation` is ``stop``."""


@dataclass
class Watch:
    """A watched run.

    Attributes
    ----------
    checker
        Has what was found.
    url
        Where the live page is; empty without one.
    """

    checker: Checker
    on_violation: OnViolation
    url: str = ""
    _recorder: Recorder = field(repr=False, default=None)  # type: ignore[assignment]
    _repeating: Repeating = field(default_factory=Repeating, repr=False)
    _assembler: Assembler = field(default_factory=Assembler, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def write(self, rows: list[Row], *, wait: bool) -> None:
        """Take rows of the recorder."""
        del wait
        for row in rows:
            closed = self._assembler.feed(row)
            if closed is not None and closed[1]:
                self._check(self.checker.check, Window(closed[0], (closed[1],)))

    def after_step(self) -> None:
        """Check the step that ends."""
        step, steps = self._recorder.step, self._repeating
        repeated = steps.repeated()
        try:
            if repeated and steps.times:
                self._check(self.checker.repeat, steps.batches(step))
                return
            if steps.times > 1:
                self.checker.remember(steps.before(step - 1))
            self._recorder.release()
            self._recorder.flush()
            closed, records = self._assembler.close()
            if records:
                self._check(self.checker.check, Window(closed, (records,)))
        finally:
            steps.begin(repeated=repeated)

    def end(self) -> None:
        """Check what came after the last step."""
        if self._repeating.times > 1:
            self.checker.remember(self._repeating.before(self._recorder.step - 1))
        self._recorder.release()
        self._recorder.flush()
        step, records = self._assembler.close()
        # Steps that repeated the one before have no rows.
        step = step if records else self._recorder.step - 1
        # What this process never calls, another rank may.
        alone = self._recorder.context.world == 1
        self._check(self.checker.check, Window(step, (records,), last=True, all_seen=alone))

    def report(self) -> CheckReport:
        """What was found so far."""
        recorder = self._recorder
        name = Path(sys.argv[0]).name if Path(sys.argv[0]).is_file() else "this run"
        return report_of(self.checker, name, max(recorder.step, 0), (recorder.rank,))

    def _check(self, check: Callable[[Window], list[Finding]], window: Window) -> None:
        with self._lock:
            new = check(window)
        if not new or self.on_violation == "report":
            return
        if self.on_violation == "stop":
            raise InvariantViolated(said(new[0]))
        for finding in new:
            warnings.warn(said(finding), InvariantWarning, stacklevel=4)


@contextmanager
def watch(
    *parts: torch.nn.Module | torch.optim.Optimizer,
    invariants: InvariantSet | str | Path | None = None,
    trace: str | Path | None = None,
    on_violation: OnViolation = "warn",
    port: int | None = None,
) -> Iterator[Watch]:
    """Check a training run against invariants inside the block, after every optimizer step.

    Or record it, to learn from. It hooks into PyTorch's modules and optimizers, reads parameters
    and gradients, and changes no number of the run. Functions are observed only if an invariant is
    about one.

    Parameters
    ----------
    parts
        The model and the optimizer, if they exist already. What the block makes or runs is found.
    invariants
        A set, or its file, as written by ``tapml invariants infer``.
    trace
        Record everything to this folder instead, for ``tapml invariants infer``.
    on_violation
        ``report``: keep it for :meth:`Watch.report`. ``warn``: an :class:`InvariantWarning` when an
        invariant is first violated. ``stop``: raise :class:`InvariantViolated` out of
        ``optimizer.step()``.
    port
        Serve a page of what is found on this machine, under :attr:`Watch.url`, while the block
        runs; 0 takes a free port.

    Yields
    ------
    Watch
        The watched run.

    Raises
    ------
    InputError
        If an argument is wrong, both or neither of `invariants` and `trace` are given, the set
        cannot be read, the folder holds an earlier run, or the port is taken.
    InvariantViolated
        If an invariant is violated and `on_violation` is ``stop``.
    """
    check_on_violation(on_violation)
    if trace is not None and invariants is None:
        folder = Path(trace)
        hold_new(folder, _rank())
        nothing = Checker(InvariantSet(FORMAT, [], []))
        with recorded_to(folder, *parts) as recorder:
            yield Watch(nothing, on_violation, _recorder=recorder)
        return
    if trace is not None or invariants is None:
        raise InputError("give either invariants, to watch the run, or trace, to record it")
    found = invariants if isinstance(invariants, InvariantSet) else read_set(Path(invariants))
    if not found.invariants:
        raise InputError("there is no invariant to watch for: the set is empty")
    # One process has no other rank to compare with.
    single = [
        each
        for each in found.invariants
        if each.relation not in _ACROSS and each.params.get("mode") != RANKS
    ]
    watched = Watch(Checker(InvariantSet(found.format, found.runs, single)), on_violation)
    recorder = watched._recorder = Recorder(watched, watched._repeating)
    needs = needs_of(watched.checker.set)
    instruments = Instruments(recorder, after_step=watched.after_step, needs=needs)
    instruments.variables.add(*parts)
    with contextlib.ExitStack() as stack:
        if port is not None:
            from tapml.invariants.live_page import live_page

            page = live_page(watched.report, watched._lock, port, single)
            watched.url = stack.enter_context(page)
        stack.enter_context(instruments.installed())
        yield watched
    watched.end()


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))
