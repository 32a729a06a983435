"""Time from the save of a hand-written kernel to its verdict in `kernel check --watch`."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

SAVES: Final = 21
BAR_SECONDS: Final = 1.0
# One of static shape; one that takes any length, and has an exact probe.
OPERATORS: Final = ("fused_rms_norm_2", "softmax")
# Text to insert in a right kernel for each outcome.
_CHANGES: Final = {"pass": "", "fail": "  return;\n", "does not build": "  flot x;\n"}
_END_SECONDS: Final = 60.0

Wanted = Callable[[dict[str, Any]], bool]


def measure() -> list[dict[str, Any]]:
    """Save right, wrong and broken kernels in turn and wait for each verdict."""
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder) / "session"
        _tapml("offload", "--quiet", "--session", session)
        return [_operator(session, operator) for operator in OPERATORS]


def _operator(session: Path, operator: str) -> dict[str, Any]:
    _tapml("kernel", "new", session, operator)
    source = session / "kernels" / operator / "opencl" / f"{operator}.cl"
    right = source.read_text(encoding="utf-8")
    waits: dict[str, list[float]] = {outcome: [] for outcome in _CHANGES}
    with _watching(session, operator) as until:
        # Until then background work for probes and closer measurements competes with a save.
        until(lambda data: data["times"]["reference_ms"] is not None)
        time.sleep(5)
        for number in range(SAVES):
            outcome = tuple(_CHANGES)[number % len(_CHANGES)]
            saved = time.time()
            source.write_text(_text(right, outcome, number), encoding="utf-8")
            found = until(lambda data: data["seconds_since_save"] is not None)
            waits[outcome].append(time.time() - saved)
            if found["outcome"] != outcome:
                raise RuntimeError(f"expected {outcome}, got {found['outcome']}: {found['reason']}")
    source.write_text(right, encoding="utf-8")
    every = [wait for each in waits.values() for wait in each]
    return {
        "part": "watch",
        "name": f"save to verdict, {operator}",
        "saves": SAVES,
        "median": round(statistics.median(every), 3),
        "seconds": round(max(every), 3),
        **{outcome: round(statistics.median(each), 3) for outcome, each in waits.items()},
        "at_most": BAR_SECONDS,
        "met": max(every) <= BAR_SECONDS,
    }


def _text(right: str, outcome: str, number: int) -> str:
    """A source that no driver has built before."""
    begin, brace, rest = right.partition(") {\n")
    return f"// save {number} of {os.getpid()}\n{begin}{brace}{_CHANGES[outcome]}{rest}"


@contextmanager
def _watching(session: Path, operator: str) -> Iterator[Callable[[Wanted], dict[str, Any]]]:
    """Run a watch; yields a function that waits for its next verdict of a kind."""
    command = _command("kernel", "check", session, operator, "--watch", "--json")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    output = process.stdout
    assert output is not None

    def until(wanted: Wanted) -> dict[str, Any]:
        for line in output:
            data: dict[str, Any] = json.loads(line)
            if wanted(data):
                return data
        raise RuntimeError("the watch ended")

    try:
        yield until
        process.send_signal(signal.SIGINT)
        process.wait(_END_SECONDS)
    finally:
        process.kill()
        process.wait()
        output.close()


def _command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tapml.cli.main", *map(str, arguments)]


def _tapml(*arguments: str | Path) -> None:
    subprocess.run(_command(*arguments), check=True, stdout=subprocess.DEVNULL)
