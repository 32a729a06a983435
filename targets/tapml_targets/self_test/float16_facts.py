"""Facts about half precision: digits, conversions, and the width of intermediate sums."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml_targets.library import Library
from tapml_targets.self_test.facts import Fact, number
from tapml_targets.self_test.kernels import ROWS
from tapml_targets.self_test.place import Place

# Ties between two halves, both ways; the last half before infinity and the tie above it; the tie
# below the smallest denormal, and denormals.
_CONVERTED: Final = (
    2049.0, 2051.0, 2050.5, -2049.0, 1.00048828125, 1.00146484375, 65504.0, 65519.996, 65520.0,
    2.0**-25, 1.5 * 2.0**-24, 2.0**-24, 3.0517578125e-05, -0.0, 1e-30, 1e30,
)  # fmt: skip
_BLOCK: Final = 32


def float16_facts(place: Place, library: Library) -> list[Fact]:
    """1035 - 1031, conversion from float32, and whether each step is rounded."""
    rows = ROWS["float16"]
    a, b, c = (np.zeros(_BLOCK, np.float16) for _ in range(3))
    a[:2], b[:2], c[:2] = (1035, 2048), (1031, 1), (0, 1)
    out = np.zeros((len(rows), _BLOCK), np.float16)
    answers = dict(zip(rows, place.run(library, "floats", [a, b, c, out])[3], strict=True))
    difference = float(answers["subtract"][0])
    # 2048 + 1 is a tie and rounds down to 2048, twice; kept in a wider format it is 2050.
    thrice = float(answers["add_thrice"][1])
    way = {2048.0: "rounded", 2050.0: "kept wider"}.get(thrice, "neither")
    exact = difference == 4
    return [
        Fact(
            "float16_1035_minus_1031", number(difference), "", 4.0, exact, "measured",
            "1035 - 1031 is 4 in half precision: all of its 11 digits count" if exact else
            f"1035 - 1031 is {difference:g} in half precision: it has fewer digits than its format",
            grave=True,
            trait="" if exact else "float16 with too few digits",
        ),
        Fact(
            "float16_steps", way, "", "rounded", True if way == "rounded" else
            None if way == "kept wider" else False, "measured",
            {
                "rounded": "every step of half precision rounds to half",
                "kept wider": "half precision is computed in a wider format and rounded at the "
                "end: results differ from a reference that rounds every step, for the better",
            }.get(way, f"2048 + 1 + 1 is {thrice:g} in half precision"),
            trait="computes float16 wider" if way == "kept wider" else "",
        ),
        _conversion(place, library),
    ]  # fmt: skip


def _conversion(place: Place, library: Library) -> Fact:
    given = np.zeros(_BLOCK, np.float32)
    given[: len(_CONVERTED)] = _CONVERTED
    with np.errstate(all="ignore"):
        want = given.astype(np.float16)
    arrays: list[NDArray[Any]] = [given, np.zeros(_BLOCK, np.float16)]
    got = place.run(library, "convert", arrays)[1]
    wrong = [
        f"{x:.8g} to {y:g}"
        for x, y, z in zip(given, got, want, strict=True)
        if y.tobytes() != z.tobytes()
    ]
    normal = np.abs(want) >= np.finfo(np.float16).smallest_normal
    ties = got[normal].tobytes() == want[normal].tobytes()
    return Fact(
        "float16_conversion", ", ".join(wrong[:6]) or "ties to even", "", "ties to even",
        not wrong, "measured",
        "float32 becomes half precision by rounding to nearest, ties to even, denormals included"
        if not wrong
        else "float32 becomes half precision with denormals lost"
        if ties
        else "float32 becomes half precision with another rounding: every cast to half is off by "
        "up to an ulp",
        grave=not ties,
        trait="" if not wrong else "float16 conversion loses denormals" if ties else
        "rounds float16 conversions otherwise",
    )  # fmt: skip
