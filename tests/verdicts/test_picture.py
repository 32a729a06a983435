"""Pictures of errors: what is counted where, and what lies where on the map."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.judge import judge
from tapml.verdicts.picture import LEVELS, MAX_CELLS, picture
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Verdict, failed

MAX_BYTES = 8 << 10


@dataclass(frozen=True)
class Replayed:
    """What a replay of one test left."""

    test: str
    verdict: Verdict
    actual: tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Named:
    name: str = "operator"


def expected(values: NDArray[Any], dtype: str = "float32", name: str = "out") -> ExpectedOutput:
    return ExpectedOutput(name, dtype, "value", values, np.zeros(values.shape, np.float32))


def draw(*outputs: tuple[ExpectedOutput, NDArray[Any]]) -> dict[str, Any]:
    """The picture of what a judge makes of these outputs, once through strict JSON."""
    expectation = Expectation(tuple(want for want, _ in outputs), 1, 3)
    actual = tuple(got for _, got in outputs)
    verdict = judge(Named(), expectation, None, actual, Policy())
    drawn = picture(Replayed("e/site@p0.s0", verdict, actual), expectation)
    text = json.dumps(drawn, allow_nan=False)
    assert len(text) < MAX_BYTES
    assert json.loads(text) == drawn
    return drawn


def damaged(shape: tuple[int, ...], place: Any, factor: float) -> dict[str, Any]:
    """Ones, of which some are wrong by so many units in the last place."""
    want = np.ones(shape)
    got = want.astype(np.float32)
    got[place] += np.float32(factor * np.spacing(np.float32(1)))
    return draw((expected(want), got))


def test_exact_outputs_are_all_zero() -> None:
    drawn = damaged((4, 6), (0, 0), 0)
    assert drawn["histogram"] == {"zero": 24, "decades": [], "not_finite": 0, "over": 0}
    assert drawn["map"]["rows"] == ["......"] * 4
    assert (drawn["test"], drawn["output"], drawn["shape"]) == ("e/site@p0.s0", "out", [4, 6])


def test_errors_are_counted_by_decade_and_those_over_the_limit_apart() -> None:
    want = np.ones(6)
    got = want.astype(np.float32)
    got[1:5] += np.float32(np.spacing(np.float32(1))) * np.array([2, 3, 200, 5000], np.float32)
    drawn = draw((expected(want), got))
    decades = {decade: (count, over) for decade, count, over in drawn["histogram"]["decades"]}
    assert decades == {0: (2, 0), 2: (1, 1), 3: (1, 1)}
    assert (drawn["histogram"]["zero"], drawn["histogram"]["over"]) == (2, 2)
    assert drawn["limits"]["degraded"] <= 200


def test_what_has_no_ratio_is_counted_and_drawn_apart() -> None:
    got = np.ones((2, 3), np.float32)
    got[1, 2] = np.nan
    drawn = draw((expected(np.ones((2, 3))), got))
    assert drawn["histogram"]["not_finite"] == 1
    assert drawn["map"]["rows"] == ["...", "..!"]


def test_the_map_is_over_the_last_two_axes_and_the_worst_of_the_others() -> None:
    drawn = damaged((3, 4, 5), (slice(None, 2), 2, 1), 3)
    assert drawn["map"]["axes"] == [1, 2]
    assert drawn["map"]["extent"] == [4, 5]
    rows = drawn["map"]["rows"]
    assert [(r, c) for r in range(4) for c in range(5) if rows[r][c] != "."] == [(2, 1)]


def test_axes_of_one_element_are_passed_over() -> None:
    drawn = damaged((4, 1, 6, 1), (3, 0, 5, 0), 2)
    assert drawn["map"]["axes"] == [0, 2]
    assert drawn["map"]["rows"][3][5] != "."


def test_a_level_says_how_large_the_largest_ratio_is() -> None:
    drawn = damaged((2, 2), (1, 1), 40)
    found = drawn["map"]
    level = found["levels"].index(found["rows"][1][1])
    low = found["first"] * 10 ** (level / found["per_decade"])
    assert low <= 40 < low * 10 ** (1 / found["per_decade"])


def test_a_large_output_keeps_its_one_wrong_element() -> None:
    drawn = damaged((1000, 777), (999, 400), 1e6)
    rows = drawn["map"]["rows"]
    assert (len(rows), len(rows[0])) == (MAX_CELLS, MAX_CELLS)
    wrong = [(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell != "."]
    assert wrong == [(47, 400 * 48 // 777)]


@pytest.mark.parametrize("elements", [1, 7, 48, 49, 2304, 2305, 100_000])
def test_a_vector_is_drawn_line_by_line(elements: int) -> None:
    drawn = damaged((elements,), (elements - 1,), 4)
    rows = drawn["map"]["rows"]
    assert drawn["map"]["axes"] == []
    assert drawn["map"]["extent"] == [1, elements]
    assert sum(map(len, rows)) == min(elements, MAX_CELLS**2)
    assert rows[-1][-1] in LEVELS
    assert set("".join(rows)[:-1]) <= {"."}


def test_integers_are_right_or_wrong() -> None:
    want = expected(np.array([[1, 2], [3, 4]], np.int32), "int32")
    drawn = draw((want, np.array([[1, 2], [3, 5]], np.int32)))
    assert drawn["limits"] == {}
    assert drawn["histogram"] == {"zero": 3, "decades": [], "not_finite": 1, "over": 1}
    assert drawn["map"]["rows"] == ["..", ".!"]


def test_of_several_outputs_the_gravest_is_drawn() -> None:
    fine, wrong = expected(np.ones(4)), expected(np.ones((2, 2)), name="second")
    drawn = draw((fine, np.ones(4, np.float32)), (wrong, np.full((2, 2), 7, np.float32)))
    assert drawn["output"] == "second"


def test_what_did_not_run_and_what_is_empty_has_no_picture() -> None:
    nothing = failed(Cause.REFUSED, "the device refused the call")
    assert picture(Replayed("t", nothing, ()), Expectation((), 1, 3)) == {}
    assert draw((expected(np.ones((0, 4))), np.ones((0, 4), np.float32))) == {}


def test_subnormal_errors_that_were_allowed_are_no_errors() -> None:
    want, got = np.full(4, 1e-40), np.zeros(4, np.float32)
    verdict = judge(
        Named(), Expectation((expected(want),), 1, 3), None, (got,),
        replace(Policy(), flushes_subnormals=("float32",)),
    )  # fmt: skip
    assert verdict.outputs[0].flushed == 4
    drawn = picture(Replayed("t", verdict, (got,)), Expectation((expected(want),), 1, 3))
    assert drawn["histogram"]["zero"] == 4


@settings(deadline=None, max_examples=60)
@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=60),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
        fill=st.sampled_from([0.0, 1.0, math.nan]),
    )
)
def test_any_output_gives_strict_json_in_which_every_element_is_counted(
    got: NDArray[np.float32],
) -> None:
    drawn = draw((expected(np.ones(got.shape)), got))
    if got.size:
        counts = drawn["histogram"]
        decades = sum(count for _, count, _ in counts["decades"])
        assert counts["zero"] + decades + counts["not_finite"] == got.size
        assert max(len(drawn["map"]["rows"]), *map(len, drawn["map"]["rows"])) <= MAX_CELLS
