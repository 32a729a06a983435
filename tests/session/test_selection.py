"""Which operators move, in which order, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml.session.selection import check_patterns, in_order, why_kept
from tapml.session.settings import RunOptions
from tapml_targets.errors import InputError
from tests.small_llama import small_llama


@pytest.fixture(scope="module")
def plan() -> GraphPlan:
    return small_llama().plan


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("--only", lambda pattern: RunOptions(only=("softmax", pattern))),
        ("--keep-on-source", lambda pattern: RunOptions(keep_on_source=(pattern,))),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_and_near_names_are_told(
    plan: GraphPlan, option: str, options: Callable[[str], RunOptions]
) -> None:
    with pytest.raises(InputError, match=rf"{option} 'sofmax' matches no operator.*softmax"):
        check_patterns(plan, options("sofmax"))
    with pytest.raises(InputError, match=r"'\*norms' matches no operator.*fused_rms_norm"):
        check_patterns(plan, options("*norms"))
    with pytest.raises(InputError, match=rf"the plan has {len(plan.operators)}: "):
        check_patterns(plan, options("####"))
    check_patterns(plan, options("softmax*"))


def test_only_what_is_named_moves_and_what_is_to_stay_stays() -> None:
    options = RunOptions(only=("matmul*", "softmax"), keep_on_source=("*_2",))
    assert why_kept("matmul", options) == why_kept("softmax", options) == ""
    assert why_kept("matmul_2", options) == "kept on the source by '*_2'"
    assert why_kept("add", options) == "kept on the source: not among 'matmul*', 'softmax'"
    assert why_kept("add", RunOptions()) == ""


def test_orders_hold_every_operator_once(plan: GraphPlan) -> None:
    names = tuple(plan.operators)
    assert in_order(plan, "graph") == names
    assert in_order(plan, "reverse") == names[::-1]
    by_sites = in_order(plan, "call-sites")
    assert sorted(by_sites) == sorted(names)
    counts = [len(plan.sites_of(name)) for name in by_sites]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]
    ties = [name for name in by_sites if len(plan.sites_of(name)) == counts[-1]]
    assert ties == [name for name in names if name in ties]
