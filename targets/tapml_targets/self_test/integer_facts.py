"""Facts about 64-bit integers, compared with Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tapml_targets.library import Library
from tapml_targets.self_test.facts import Fact
from tapml_targets.self_test.kernels import ROWS
from tapml_targets.self_test.place import Place

_MASK: Final = (1 << 64) - 1
_EDGES: Final = (0, 1, -1, 3, 1 << 31, (1 << 32) + 7, -(1 << 32) - 7, (1 << 63) - 1, -(1 << 63))
_SECOND: Final = (1, 31, 32, 33, 63, -5, 0xFFFFFFFF, (1 << 40) + 1, 7)


def int64_fact(place: Place, library: Library) -> Fact:
    """Products, shifts, quotients and comparisons of 64-bit integers."""
    pairs = [(x, y) for x in _EDGES for y in _SECOND]
    a, b = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    rows = ROWS["int64"]
    out = place.run(library, "int64", [a, b, np.zeros((len(rows), len(a)), np.int64)])[2]
    wrong = {
        row: sum(
            int(got) != _signed(_EXACT[row](x, y))
            for got, (x, y) in zip(out[number], pairs, strict=True)
        )
        for number, row in enumerate(rows)
    }
    broken = [row.replace("_", " ") for row in rows if wrong[row]]
    return Fact(
        "int64_arithmetic", sum(wrong.values()), "results wrong", 0, not broken, "measured",
        f"{len(rows) * len(pairs)} sums, products, shifts, quotients and comparisons of 64-bit "
        "integers are right"
        if not broken
        else f"64-bit integers go wrong in {', '.join(broken)}: indices and offsets of large "
        "tensors do, too",
        grave=True,
        trait="computes int64 wrong" if broken else "",
    )  # fmt: skip


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _divide(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


_EXACT: Final[dict[str, Callable[[int, int], int]]] = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "shift_left": lambda x, y: x << (y & 63),
    "shift_right": lambda x, y: x >> (y & 63),
    "shift_right_unsigned": lambda x, y: (x & _MASK) >> (y & 63),
    "divide": _divide,
    "less": lambda x, y: int(x < y),
}
