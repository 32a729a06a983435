"""The draw is the same for the same seed, and even over kinds and operators."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.mutants.kinds import KINDS, sites
from scripts.mutants.sampling import draw
from tests.mutants.kernels import GATE, REDUCE, library

_PLACES = {
    "gate": sites(library(GATE, "gate_kernel")),
    "reduce": sites(library(REDUCE, "reduce_kernel")),
    "second": sites(library(REDUCE, "reduce_kernel")),
}
_POSSIBLE = sum(len(found) for kinds in _PLACES.values() for found in kinds.values())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(0, 60))
def test_the_same_seed_draws_the_same_mutants(seed: int, count: int) -> None:
    drawn = draw(_PLACES, count, seed)
    assert drawn == draw(_PLACES, count, seed)
    assert len(drawn) == count
    assert len({(mutant.operator, mutant.site) for mutant in drawn}) == count


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_kinds_take_turns(seed: int) -> None:
    counts = Counter(mutant.site.kind for mutant in draw(_PLACES, 2 * len(KINDS), seed))
    assert set(counts.values()) == {2}
    assert set(counts) == set(KINDS)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_of_one_kind_an_operator_gets_two_only_when_all_have_one(seed: int) -> None:
    for kind in KINDS:
        having = [name for name, kinds in _PLACES.items() if kind in kinds]
        drawn = [m for m in draw(_PLACES, 3 * len(KINDS), seed) if m.site.kind == kind]
        counts = Counter(mutant.operator for mutant in drawn)
        assert max(counts.values()) - min(counts[name] for name in having) <= 1


def test_there_are_no_more_mutants_than_sites() -> None:
    assert len(draw(_PLACES, 10**6, 1)) == _POSSIBLE
