"""The longest input of an entry, as the operators in it see it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapml.compiler.symbol_ranges import symbol_ranges
from tapml.plan.graph_plan import GraphPlan
from tests.small_llama import small_llama


@pytest.fixture(scope="module")
def plan() -> GraphPlan:
    return small_llama().plan


def test_operators_see_the_longest_prompt(plan: GraphPlan) -> None:
    ranges = symbol_ranges(plan)
    (bounds,) = plan.entries["prefill"].bounds
    assert bounds.upper is not None
    assert ranges.entries["prefill"] == {bounds.symbol: bounds.upper}
    found = {tuple(each.values()) for each in ranges.operators["softmax"]}
    assert found == {(bounds.upper,)}


def test_a_given_length_bounds_the_symbols(plan: GraphPlan) -> None:
    (bounds,) = plan.entries["prefill"].bounds
    ranges = symbol_ranges(plan, {"prefill": {bounds.symbol: 3}})
    seen = {
        value for found in ranges.operators.values() for each in found for value in each.values()
    }
    assert 3 in seen
    assert bounds.upper not in seen


def test_a_symbol_without_a_bound_is_left_out(plan: GraphPlan) -> None:
    entries = {
        name: replace(e, bounds=tuple(replace(b, upper=None) for b in e.bounds))
        for name, e in plan.entries.items()
    }
    ranges = symbol_ranges(replace(plan, entries=entries))
    assert ranges.entries["prefill"] == {}
    (bounds,) = plan.entries["prefill"].bounds
    seen = {
        value for found in ranges.operators.values() for each in found for value in each.values()
    }
    assert bounds.upper not in seen
