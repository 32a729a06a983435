"""The fixed operands of the arithmetic of a dtype, in groups, and the answers by row and group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml_targets.library import Library
from tapml_targets.self_test.kernels import ROWS
from tapml_targets.self_test.place import Place

PAIRS: Final = 192
_SEED: Final = 1
# A multiple of the block sizes.
_MULTIPLE: Final = 32
EDGES: Final = (0.0, 1.0, 10.0, 45.0, -45.0, 88.0, 89.0, -104.0, 1e4, np.inf, -np.inf)
"""Arguments of exp, log, tanh and GELU at which careless formulas make a NaN or an infinity."""


@dataclass(frozen=True)
class Operands:
    """Three operands per case; a group is a range of cases.

    Groups
    ------
    accuracy
        Random numbers, all digits used, `a` positive.
    multiply_add
        `c` is the negative of the rounded product: a sum that is rounded once is the product's
        rounding error, one that is rounded twice is zero.
    denormal_inputs
        `a` denormal; `b` a power of two that makes the product normal.
    denormal_results
        `a` normal; `b` a power of two that makes the product denormal.
    nan, zero, edges
        `a` a NaN; `a` and `b` -0; `a` one of :data:`EDGES`.
    """

    dtype: str
    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any]
    groups: dict[str, slice] = field(default_factory=dict)

    def ask(self, place: Place, library: Library) -> dict[str, NDArray[Any]]:
        """The device's results, by row."""
        rows = ROWS[self.dtype]
        out = np.zeros((len(rows), len(self.a)), self.dtype)
        answers = place.run(library, "floats", [self.a, self.b, self.c, out])[-1]
        return dict(zip(rows, answers, strict=True))


def operands_of(dtype: str) -> Operands:
    """The operands for a dtype; the same in every process."""
    kind, info = np.dtype(dtype), np.finfo(dtype)
    generator = np.random.default_rng(_SEED)
    low, high = (0.25, 16.0)
    random = generator.uniform(low, high, (2, PAIRS)).astype(kind)
    with np.errstate(all="ignore"):
        tiny, half = info.smallest_normal, kind.type(0.5)
        bits = info.nmant
        denormal = np.array([1, 2, 3, 1 << (bits // 2), (1 << bits) - 1, 5], kind) * (
            info.smallest_subnormal
        )
        denormal[-1] = -denormal[-1]
        normal = tiny * np.array([1.0, 1.0, 1.5, 1.75, -1.0, -1.5], kind)
        scale = np.full(6, 2.0 ** (bits + 2), kind)
        cases = {
            "accuracy": (random[0], random[1], np.ones(PAIRS, kind)),
            "multiply_add": (random[0], random[1], -(random[0] * random[1])),
            "denormal_inputs": (denormal, scale, np.zeros(6, kind)),
            "denormal_results": (
                normal,
                half ** np.array([1, 2, 1, 2, 1, 1], kind),
                np.zeros(6, kind),
            ),
            "nan": _three(kind, np.nan, 1.0, 2.0),
            "zero": _three(kind, -0.0, -0.0, -0.0),
            "edges": (
                np.array(EDGES, kind), np.ones(len(EDGES), kind), np.zeros(len(EDGES), kind),
            ),
        }  # fmt: skip
    groups, columns, start = {}, [], 0
    for name, (first, *_) in cases.items():
        groups[name] = slice(start, start := start + len(first))
    for position in range(3):
        column = np.concatenate([case[position] for case in cases.values()])
        rest = -len(column) % _MULTIPLE
        columns.append(np.concatenate([column, np.ones(rest, kind)]))
    return Operands(dtype, columns[0], columns[1], columns[2], groups)


def _three(
    kind: np.dtype[Any], a: float, b: float, c: float
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    return np.full(1, a, kind), np.full(1, b, kind), np.full(1, c, kind)


def errors_in_ulp(got: NDArray[Any], exact: NDArray[np.float64]) -> NDArray[np.float64]:
    """Errors in units in the last place of the rounded exact results; Inf for a NaN."""
    kind = got.dtype
    with np.errstate(all="ignore"):
        rounded = np.abs(exact).astype(kind)
        error = np.abs(got.astype(np.float64) - exact) / np.spacing(rounded).astype(np.float64)
        error[np.isinf(rounded) & np.isinf(got)] = 0.0
    return np.where(np.isfinite(error), error, np.inf)
