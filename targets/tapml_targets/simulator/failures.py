"""What ended a simulated launch, as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tapml_targets.simulator.launching import PreparedLaunch
from tapml_targets.simulator.lines import line_at

_BARRIER, _EXCHANGE, BAD_ADDRESS, _STACK = 1, 2, 3, 4
DIVERGENCES: Final = (_BARRIER, _EXCHANGE)
_NEAR: Final = 1 << 30


def sentence(failure: Any, launch: PreparedLaunch) -> str:
    """Say what a thread did, in which line of the kernel's text, where that is known."""
    who = f"thread {_index(failure.thread)} of block {_index(failure.block)}"
    other = f"thread {_index(failure.other_thread)}"
    elsewhere = (
        f"{other} waits at line {failure.other_line}"
        if failure.other_line
        else f"{other} has ended"
    )
    if failure.fault == _BARRIER:
        return f"divergent barrier: {who} waits at line {failure.line}, and {elsewhere}"
    if failure.fault == _EXCHANGE:
        return (
            f"divergent shuffle: {who} exchanges with its wave at line {failure.line}, and "
            f"{elsewhere}"
        )
    line = line_of(failure, launch)
    at = f" at line {line}" if line else ""
    if failure.fault == BAD_ADDRESS:
        return f"{who} reads or writes{at} where it has no memory{_place(failure.address, launch)}"
    if failure.fault == _STACK:
        return f"{who} uses{at} more private memory than a simulated thread has"
    return f"{who} divides{at} by zero or overflows"


def line_of(failure: Any, launch: PreparedLaunch) -> int:
    """The line of the kernel's text where it ended; 0 if it is not known."""
    return int(failure.line) or line_at(launch.kernel.library, failure.program_counter)


def _index(values: Sequence[int]) -> str:
    return f"({','.join(map(str, values))})"


def _place(address: int, launch: PreparedLaunch) -> str:
    """Which of its buffers an address is nearest to."""
    near = [
        (min(abs(address - begin), abs(address - begin - nbytes)), number, address - begin, nbytes)
        for number, (begin, nbytes) in enumerate(launch.windows)
    ]
    if not near or min(near)[0] > _NEAR:
        return ""
    _, number, byte, nbytes = min(near)
    return f": byte {byte} of buffer argument {number}, which has {nbytes}"
