"""Consistent: two variables have equal values, whatever these are (table 2, algorithm 2).

``ranks``: the same variable on two ranks after the same step. ``tied``: two names in one process.
Digests cover whole tensors, so a difference in any row counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from tapml.invariants.record import Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class Consistent(Relation):
    """Equal digests of two variables after a step."""

    name = "Consistent"
    # Values of other tensors agree because these do (section 3.6).
    avoided = ("grad", "changed", "in_optimizer", "shape")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Kinds of variables that agree across ranks, and names that agree in a process."""
        kinds = set()
        groups: list[dict[tuple[int, str], set[str]]] = []
        moved = set()
        for window in windows:
            by_name: dict[str, list[Record]] = defaultdict(list)
            by_digest: dict[tuple[int, str], set[str]] = defaultdict(set)
            for state in _states(window):
                by_name[state.name].append(state)
                by_digest[state.rank, state.digest].add(state.name)
                if state.fields.get("changed"):
                    moved.add(state.name)
            for states in by_name.values():
                if len({state.digest for state in states}) < len(states):
                    kinds.add(str(states[0].fields["type"]))
            if by_digest:
                groups.append(by_digest)
        for kind in sorted(kinds):
            yield {"mode": "ranks", "type": kind}
        yield from (
            {"mode": "tied", "first": first, "second": second}
            for first, second in sorted(_always_equal(groups, moved))
        )

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each pair after the step."""
        names: dict[object, list[Record]] = defaultdict(list)
        for state in _states(window):
            if params["mode"] == "ranks":
                if state.fields["type"] == params["type"]:
                    names[state.name].append(state)
            elif state.name in (params["first"], params["second"]):
                names[state.rank].append(state)
        for states in names.values():
            for one, other in combinations(states, 2):
                if one.fields.get("shape") == other.fields.get("shape"):
                    yield Example(
                        one.digest == other.digest,
                        (one, other),
                        one.name,
                        f"{one.name} on rank {one.rank} has digest {one.digest[:8]}, "
                        f"{other.name} on rank {other.rank} has {other.digest[:8]}",
                    )

    def sentence(self, params: Params) -> str:
        """The pair."""
        if params["mode"] == "ranks":
            return f"After a step, each {params['type']} has equal values on all ranks."
        return f"{params['first']} and {params['second']} have equal values after each step."

    def concerns(self, params: Params) -> frozenset[str]:
        """The kind of variable across ranks, or the two names."""
        if params["mode"] == "ranks":
            return frozenset({f"{params['type']} across ranks"})
        return frozenset({params["first"], params["second"]})


def _states(window: Window) -> list[Record]:
    return [state for state in window.states if state.digest]


def _always_equal(
    groups: Sequence[dict[tuple[int, str], set[str]]], moved: set[str]
) -> set[tuple[str, str]]:
    """Pairs with one digest in every step; biases that are all zero at first drop out later."""
    pairs: set[tuple[str, str]] | None = None
    for by_digest in groups:
        here = {
            pair for names in by_digest.values() for pair in combinations(sorted(names & moved), 2)
        }
        pairs = here if pairs is None else pairs & here
    return pairs or set()


RELATION = Consistent()
