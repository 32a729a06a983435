"""Preconditions as section 3.6 of the paper deduces them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tapml.invariants.precondition import ALWAYS, applies, deduce, text_of
from tapml.invariants.record import STATE, Record


def record(rank: int = 0, **fields: Any) -> Record:
    """The state of a variable."""
    return Record(STATE, "weight", -1, -1, 0, rank, "", "", {}, fields, done=True)


def test_figure_4_of_the_paper() -> None:
    norm = [
        record(0, tensor_model_parallel=False, is_cuda=True, **{"meta.TP_RANK": 0}),
        record(1, tensor_model_parallel=False, is_cuda=True, **{"meta.TP_RANK": 1}),
    ]
    split = [
        record(0, tensor_model_parallel=True, is_cuda=True, **{"meta.TP_RANK": 0}),
        record(1, tensor_model_parallel=True, is_cuda=True, **{"meta.TP_RANK": 1}),
    ]
    mixed = [
        record(0, tensor_model_parallel=True, is_cuda=True, **{"meta.TP_RANK": 0}),
        record(1, tensor_model_parallel=False, is_cuda=True, **{"meta.TP_RANK": 0}),
    ]
    found = deduce([norm], [split, mixed])
    assert found is not None
    # is_cuda holds everywhere, so it is pruned.
    assert "is_cuda" not in text_of(found)
    assert "tensor_model_parallel is False" in text_of(found)


def test_several_scenarios_give_a_disjunction() -> None:
    """Figure 5: no conjunction separates the examples, two together do."""
    passing = [[record(kind="norm", split=True)], [record(kind="weight", split=False)]] * 2
    failing = [[record(kind="weight", split=True)]]
    found = deduce(passing, failing)
    assert found is not None
    assert len(found) == 2
    assert all(applies(found, each) for each in passing)
    assert not applies(found, failing[0])


def test_without_failing_examples_a_rule_always_applies() -> None:
    assert deduce([[record(a=True)]], []) == ALWAYS
    assert text_of(ALWAYS) == ""


def test_examples_that_differ_in_nothing_have_no_precondition() -> None:
    assert deduce([[record(a=True)]], [[record(a=True)]]) is None


def test_numbers_shapes_and_paths_are_no_constants() -> None:
    for value in (3, 0.5, [8, 4], "/tmp/run-3"):
        assert deduce([[record(a=value)]], [[record(a=None)]]) in (None, ALWAYS)


FIELDS = st.fixed_dictionaries(
    {name: st.sampled_from([True, False, "x", "y"]) for name in ("a", "b", "c")}
)


@given(st.lists(FIELDS, min_size=1, max_size=8), st.lists(FIELDS, max_size=8))
def test_a_deduced_precondition_is_safe_and_covers(
    good: list[dict[str, Any]], bad: list[dict[str, Any]]
) -> None:
    passing = [[record(**fields)] for fields in good]
    failing = [[record(**fields)] for fields in bad]
    found = deduce(passing, failing)
    if found is not None:
        assert all(applies(found, each) for each in passing)
        assert not any(applies(found, each) for each in failing)
