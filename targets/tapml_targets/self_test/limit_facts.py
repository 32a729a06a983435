"""Facts about real limits: buffers, blocks, and the length of loops."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml_targets.errors import TapmlError
from tapml_targets.library import Library
from tapml_targets.self_test.facts import Fact
from tapml_targets.self_test.kernels import STEPS, block_threads
from tapml_targets.self_test.place import Place

ITERATIONS: Final = 150_000
OUTER: Final = 300
INNER: Final = 500
# More would burden a shared machine.
MOST_BUFFER_BYTES: Final = 256 << 20
_MARK: Final = bytes(range(1, 65)) * 16
# float32 values that are easily lost: NaNs with payload, -0, infinities, denormals.
_FRAGILE: Final = np.array(
    [0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0x7F800000, 0xFF800000, 1, 0x807FFFFF],
    np.uint32,
)


def buffer_facts(place: Place) -> list[Fact]:
    """The largest buffer up to a cap, and whether bytes survive a round trip."""
    stated = place.device.limits.max_buffer_bytes
    wanted = min(stated, MOST_BUFFER_BYTES) if stated else MOST_BUFFER_BYTES
    capped = ", the most that is tried" if wanted == MOST_BUFFER_BYTES else ""
    try:
        holds = place.ends(wanted, _MARK) == (_MARK, _MARK)
        found = f"a buffer of {wanted} bytes{capped} keeps what is written at its two ends"
        value, sound = (wanted, True) if holds else (0, False)
        meaning = found if holds else f"{found.replace('keeps', 'loses')}: weights would be wrong"
    except TapmlError as error:
        # Others may be using the memory at the moment.
        value, sound = 0, None
        meaning = f"{wanted} bytes could not be allocated now: {str(error)[:300]}"
    returned = place.round_trip(_FRAGILE.tobytes())
    changed = int(np.count_nonzero(np.frombuffer(returned, np.uint32) != _FRAGILE))
    return [
        Fact("buffer_bytes", value, "bytes", wanted, sound, "measured", meaning, grave=True),
        Fact(
            "buffer_round_trip", changed, "values changed", 0, not changed, "measured",
            "NaNs with their payload, -0, infinities and denormals come back from a buffer "
            + ("bit for bit" if not changed else "changed: what is read is not what was computed"),
            grave=True,
            trait="changes values in buffers" if changed else "",
        ),
    ]  # fmt: skip


def block_fact(place: Place, library: Library) -> Fact:
    """A work-group of the largest size that the driver states, with a barrier."""
    threads = block_threads(place.device.limits)
    arrays: list[NDArray[Any]] = [np.zeros(threads, np.int32) for _ in range(2)]
    try:
        out = place.run(library, "block", arrays)[1]
        right = int(np.count_nonzero(out == np.arange(threads, 0, -1, dtype=np.int32)))
        told = f"{right} of {threads} threads of the largest block met at a barrier"
    except TapmlError as error:
        right, told = 0, f"a block of {threads} threads does not run: {str(error)[:300]}"
    whole = right == threads
    return Fact(
        "block_threads", right, "threads", threads, whole, "measured",
        told if whole else f"{told}: kernels with blocks that large compute wrong numbers",
        grave=True,
        trait="" if whole else "breaks its largest block",
    )  # fmt: skip


def loop_facts(place: Place, library: Library) -> list[Fact]:
    """Whether a loop runs to its end, alone and nested."""
    arrays: list[NDArray[Any]] = [
        np.ones(STEPS, np.uint32),
        np.array([ITERATIONS, OUTER, INNER], np.int32),
        np.zeros(2, np.int32),
    ]
    alone, nested = place.run(library, "loops", arrays)[2].tolist()
    return [
        _loop("loop_iterations", alone, ITERATIONS, "a loop"),
        _loop("nested_loop_iterations", nested, OUTER * INNER, "two nested loops"),
    ]


def _loop(name: str, found: int, expected: int, what: str) -> Fact:
    whole = found == expected
    return Fact(
        name, found, "iterations", expected, whole, "measured",
        f"{what} of {expected:,} iterations in one thread ran to the end"
        if whole
        else f"{what} of {expected:,} iterations in one thread ended after {found:,} without "
        "an error: longer sums and scans of a model are cut short",
        grave=True,
        trait="" if whole else f"ends loops after {found:,} iterations",
    )  # fmt: skip
