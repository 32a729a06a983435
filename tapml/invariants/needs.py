"""What a set of invariants has to see of a run; a watched run records no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tapml.invariants.invariant import InvariantSet
from tapml.invariants.relation import relations

RANKS: Final = "ranks"
"""The mode of invariants that compare ranks."""


@dataclass(frozen=True)
class Needs:
    """What invariants are about.

    Attributes
    ----------
    whole
        APIs whose arguments, results and contents they look at.
    contents
        By such an API: what they look for inside it, as of
        :func:`~tapml.invariants.record.content_name`.
    inside
        All of these contents.
    gradients
        Whether they ask for the gradient of a variable.
    batches
        Whether they compare batches.
    ranks
        Whether they compare variables of ranks: digests of all bytes instead of a faster sum.
    between
        Whether they ask what changed parameters between two optimizer steps.
    inputs
        Whether they compare what a model is given with what it was given or gave before.
    fresh
        Whether they ask if what a model, or a loss, is given differs from the step before.
    targets
        Whether they compare targets with those of the step before, where inputs differ.
    norms
        Whether they ask for norms without statistics in evaluation.
    scores
        Whether they compare checkpoints with evaluations.
    saved
        Whether they compare checkpoints with the weights of models.
    origins
        Whether they ask where targets come from.
    nodes
        Kinds of nodes that they look for in the graphs of losses.
    """

    whole: frozenset[str]
    contents: Mapping[str, frozenset[str]]
    inside: frozenset[str]
    gradients: bool
    batches: bool
    ranks: bool
    between: bool = False
    inputs: bool = False
    fresh: bool = False
    targets: bool = False
    norms: bool = False
    scores: bool = False
    saved: bool = False
    origins: bool = False
    nodes: frozenset[str] = frozenset()

    @property
    def functions(self) -> frozenset[str]:
        """The functions and tensor methods among them: only a function mode sees these."""
        return frozenset(
            name
            for name in self.whole | self.inside
            if name.startswith("torch.")
            and " " not in name
            and not name.endswith((".forward", ".__next__"))
        )


def needs_of(invariants: InvariantSet) -> Needs:
    """What the invariants of a set need."""
    known, found = relations(), invariants.invariants
    whole: set[str] = set()
    contents: dict[str, set[str]] = defaultdict(set)
    fields, batches = set(), False
    for each in found:
        relation = known[each.relation]
        whole |= relation.calls(each.params)
        batches = batches or relation.batches
        for parent, child in relation.contents(each.params):
            contents[parent].add(child)
        fields |= {condition.field for clause in each.precondition for condition in clause}
    return Needs(
        frozenset(whole),
        {parent: frozenset(children) for parent, children in contents.items()},
        frozenset().union(*contents.values()),
        "grad" in fields or any(each.params.get("attribute") == "grad" for each in found),
        batches,
        any(each.params.get("mode") == RANKS for each in found),
        any(known[each.relation].between for each in found),
        any(known[each.relation].inputs for each in found),
        any(known[each.relation].fresh for each in found),
        any(known[each.relation].targets for each in found),
        any(known[each.relation].norms for each in found),
        any(known[each.relation].scores for each in found),
        any(known[each.relation].saved for each in found),
        any(known[each.relation].origins for each in found),
        frozenset(each.params["node"] for each in found if "node" in each.params),
    )
