"""The localization map's numbers, and who is outvoted."""

from __future__ import annotations

import numpy as np

from tapml.backends.runner import Array, Node
from tapml.comparing.localization import (
    EPSILON,
    deviations,
    is_beyond_rounding,
    is_rounding,
    minority,
    unit_of,
)

CHAIN = [
    Node(name, "Dense", ((before, 0),))
    for before, name in [("x", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")]
]


def states(**values: float) -> dict[str, list[Array]]:
    return {name: [np.full(4, value, np.float64)] for name, value in values.items()}


def test_the_rate_of_change_is_the_papers() -> None:
    first = states(a=1, b=1, c=1, d=1, e=1)
    second = states(a=1, b=1.5, c=2, d=2, e=2)
    found = {each.node.name: each for each in deviations(CHAIN, first, second)}
    assert found["b"].rate == 0.5 / EPSILON
    assert found["c"].rate == (1 - 0.5) / (0.5 + EPSILON)
    assert [name for name, each in found.items() if each.suspect] == ["b"]


def test_the_largest_inbound_deviation_counts() -> None:
    nodes = [*CHAIN[:2], Node("sum", "Add", (("a", 0), ("b", 0)))]
    first, second = states(a=1, b=1, sum=2), states(a=1, b=3, sum=4)
    assert deviations(nodes, first, second)[-1].rate == 0


def test_rounding_is_no_suspect_even_where_its_rate_is_highlighted() -> None:
    first = states(a=1, b=1, c=1, d=1, e=1)
    second = states(a=1, b=1, c=1, d=1 + 4e-6, e=1)
    found = {each.node.name: each for each in deviations(CHAIN, first, second)}
    assert found["d"].highlighted and found["d"].rate > 10
    assert not found["d"].suspect and not found["d"].deviates


def test_a_node_that_one_side_fused_away_passes_its_deviation_on() -> None:
    first = states(a=1, b=2, c=2, d=2, e=2)
    second = states(a=2, c=3, d=3, e=3)
    found = {each.node.name: each for each in deviations(CHAIN, first, second)}
    assert "b" not in found
    assert found["c"].rate == 0


def test_nan_on_one_side_is_the_source_and_not_its_successors() -> None:
    first, second = states(a=1, b=1, c=1, d=1, e=1), states(a=1, b=1, c=np.nan, d=np.nan, e=np.nan)
    found = {each.node.name: each for each in deviations(CHAIN, first, second)}
    assert [name for name, each in found.items() if each.suspect] == ["c"]


def test_one_wrong_element_of_many_is_beyond_rounding() -> None:
    right = np.ones(1_000_000)
    wrong = right.copy()
    wrong[7] = 1.01
    assert is_beyond_rounding([right], [wrong])
    assert not is_beyond_rounding([right], [right + 1e-7])


def test_half_precision_rounds_more_coarsely() -> None:
    exact = np.linspace(-1, 1, 64, dtype=np.float32)
    brain = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert unit_of([exact]) == 0 < unit_of([exact.astype(np.float16)]) < unit_of([brain])
    assert unit_of([np.array([1, 0, 2, 1], np.float32)]) == 0
    assert unit_of([np.full(64, 0.5, np.float32)]) == 0
    low = ((exact * np.float32(1.002)).view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert not is_beyond_rounding([brain], [low])
    assert is_beyond_rounding([exact], [brain * 1.1])
    assert is_beyond_rounding([exact], [exact * np.float32(1.001)])
    # Three values tell nothing of one side, and enough of both.
    few = np.array([0.5, 1.25, -2.125, 3.0], np.float32)
    more = np.array([0.5, 1.25, -2.125, 3 + 2.0**-6], np.float32)
    assert not is_beyond_rounding([more], [few])
    next_ones = np.array([0.5 + 2.0**-8, 1.25 + 2.0**-7, -2.125 - 2.0**-6], np.float32)
    assert not is_beyond_rounding([few[:3]], [next_ones])
    assert is_beyond_rounding([few[:3]], [few[:3] * np.float32(1.0078)])
    # One side alone computes more coarsely than the model asks.
    assert is_beyond_rounding([brain], [exact])
    assert not is_beyond_rounding([exact.astype(np.float16)], [exact * np.float32(1.0005)])


def test_a_code_of_8_bits_may_be_the_next_and_not_all_of_them() -> None:
    codes = np.arange(-100, 100, dtype=np.int8)
    tied, shifted = codes.copy(), codes + np.int8(1)
    tied[150] += 1
    assert not is_beyond_rounding([codes], [tied])
    assert is_beyond_rounding([codes], [shifted])
    assert is_beyond_rounding([codes.astype(np.int32)], [tied.astype(np.int32)])
    assert is_rounding(1 / 50, [0, unit_of([codes])])


def test_outputs_of_layers_in_half_precision_may_be_as_far_apart_as_these_round() -> None:
    assert is_rounding(3e-3, [0.0, 2.0**-8])
    assert not is_rounding(0.1, [0.0, 2.0**-8])
    assert not is_rounding(1e-3, [0.0, 0.0])


def test_a_majority_of_equal_results_names_the_others() -> None:
    one, two = [np.ones(3)], [np.full(3, 2.0)]
    assert minority({"a": one, "b": two, "c": one}) == ["b"]
    assert minority({"a": one, "b": two}) == []
    assert minority({"a": one, "b": two, "c": one, "d": two}) == []
