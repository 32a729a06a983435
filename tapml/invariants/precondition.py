"""When a rule applies: conditions on the records of an example, and their deduction.

Section 3.6 of the paper. A precondition is a disjunction of clauses, a clause a conjunction of
conditions. It is safe if it holds for no failing example; what is deduced is safe and holds for
all passing ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from tapml.invariants.record import (
    ACTIVATION,
    AGAIN,
    BEST,
    CARRIED,
    CHANGED,
    CURRENT,
    GRAPH,
    NODE,
    ORIGIN,
    OVER,
    PARTS,
    RATE,
    ROUNDED,
    SCHEDULED,
    SCORE,
    TARGET,
    UNTRACKED,
    UNUSED,
    Record,
    Value,
)

_TRIES: Final = 400
_LEAST_OF_A_CLAUSE: Final = 2
_LONGEST_CONSTANT: Final = 40
# Steps, sizes, places and contents of one run; constants of these would not hold in another.
_NEVER: Final = ("step", "epoch", "place", "length", "shape", "digest", "weights", "missing", PARTS)
# What a relation of its own looks at is no condition of another.
_LOOKS: Final = (
    ACTIVATION,
    AGAIN,
    BEST,
    CARRIED,
    CHANGED,
    CURRENT,
    GRAPH,
    NODE,
    ORIGIN,
    OVER,
    RATE,
    ROUNDED,
    SCHEDULED,
    SCORE,
    TARGET,
    UNTRACKED,
    UNUSED,
)

Kind: TypeAlias = Literal["CONSTANT", "CONSISTENT", "UNEQUAL", "EXIST"]


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A condition on one field of an example's records.

    Attributes
    ----------
    kind
        ``CONSTANT``: all records have this value. ``CONSISTENT``: all have the same value.
        ``UNEQUAL``: no two have the same. ``EXIST``: all have the field.
    field
        Its name.
    value
        Of CONSTANT alone.
    """

    kind: Kind
    field: str
    value: str | bool | None = None

    def holds(self, records: Sequence[Record]) -> bool:
        """Whether the records meet it."""
        values = []
        for record in records:
            facts = record.facts
            if self.field not in facts:
                return False
            values.append(facts[self.field])
        return self.kind in _kinds(values) and (self.kind != "CONSTANT" or values[0] == self.value)

    def __str__(self) -> str:
        name = self.field.removeprefix("meta.").removeprefix("attr.")
        return {
            "CONSTANT": f"{name} is {self.value!r}" if self.value != "" else f"there is no {name}",
            "CONSISTENT": f"{name} is the same",
            "UNEQUAL": f"{name} differs",
            "EXIST": f"{name} is known",
        }[self.kind]


Clause: TypeAlias = tuple[Condition, ...]
Precondition: TypeAlias = tuple[Clause, ...]
ALWAYS: Final[Precondition] = ((),)


def applies(precondition: Precondition, records: Sequence[Record]) -> bool:
    """Whether a precondition holds for an example's records."""
    return any(all(each.holds(records) for each in clause) for clause in precondition)


def text_of(precondition: Precondition) -> str:
    """A precondition in English; empty if it always holds."""
    clauses = [" and ".join(map(str, clause)) for clause in precondition if clause]
    return ", or ".join(clauses)


def conditions_of(records: Sequence[Record], avoided: Collection[str]) -> frozenset[Condition]:
    """All conditions that an example's records meet, but for avoided fields."""
    facts = [record.facts for record in records]
    shared = set(facts[0]).intersection(*facts[1:])
    found = set()
    for field in shared:
        never = field in _LOOKS or any(word in field.split(".") for word in _NEVER)
        if never or field.startswith(tuple(avoided)):
            continue
        values = [each[field] for each in facts]
        for kind in _kinds(values):
            if kind == "CONSTANT":
                if field != "rank" and _may_be_constant(values[0]):
                    found.add(Condition(kind, field, values[0]))  # type: ignore[arg-type]
            elif kind == "EXIST":
                if field.startswith(("meta.", "attr.")):
                    found.add(Condition(kind, field))
            else:
                found.add(Condition(kind, field))
    return frozenset(found)


def _kinds(values: Sequence[Value]) -> Iterator[Kind]:
    yield "EXIST"
    distinct = {repr(value) for value in values}
    if len(distinct) == 1:
        yield "CONSTANT"
        if len(values) > 1:
            yield "CONSISTENT"
    elif len(distinct) == len(values):
        yield "UNEQUAL"


def _may_be_constant(value: Value) -> bool:
    # Numbers and paths belong to one run.
    return isinstance(value, bool) or (
        isinstance(value, str) and len(value) <= _LONGEST_CONSTANT and "/" not in value
    )


def deduce(
    passing: Sequence[Sequence[Record]],
    failing: Sequence[Sequence[Record]],
    avoided: Collection[str] = (),
) -> Precondition | None:
    """The precondition that separates passing from failing examples, or None.

    Parameters
    ----------
    passing, failing
        The records of each example.
    avoided
        Prefixes of fields that are no conditions for this relation.
    """
    if not failing:
        return ALWAYS
    good = Counter(conditions_of(records, avoided) for records in passing)
    bad = {conditions_of(records, avoided) for records in failing}
    if any(each in bad for each in good):
        return None

    def safe(clause: frozenset[Condition]) -> bool:
        return not any(clause <= each for each in bad)

    whole = frozenset.intersection(*good)
    if safe(whole):
        return (_pruned(whole, bad),)
    found = _split(good, whole, safe)
    return None if found is None else tuple(_pruned(clause, bad) for clause in found)


def _split(
    good: Counter[frozenset[Condition]],
    whole: frozenset[Condition],
    safe: Callable[[frozenset[Condition]], bool],
) -> list[frozenset[Condition]] | None:
    """Safe clauses that cover all passing examples together (figure 5)."""
    weights: Counter[Condition] = Counter()
    for conditions, count in good.items():
        for condition in conditions - whole:
            weights[condition] += count
    # Conditions that cover most come first; names break ties, so that results repeat.
    order = sorted(weights, key=lambda each: (-weights[each], str(each), each.kind))
    found: list[frozenset[Condition]] = []
    uncovered = set(good)
    waiting = [frozenset({condition}) for condition in order]
    for added in waiting[:_TRIES]:
        group = [conditions for conditions in good if added <= conditions]
        if not uncovered & set(group) or sum(good[each] for each in group) < _LEAST_OF_A_CLAUSE:
            continue
        clause = frozenset.intersection(*group)
        if safe(clause):
            found.append(clause)
            uncovered -= set(group)
            if not uncovered:
                return found
        elif len(waiting) < _TRIES:
            waiting += [
                added | {other}
                for other in order
                if other not in clause and str(other) > max(map(str, added))
            ]
    return None


def _pruned(clause: frozenset[Condition], bad: Collection[frozenset[Condition]]) -> Clause:
    """A clause without conditions that no failing example violates."""
    kept = [each for each in clause if any(each not in conditions for conditions in bad)]
    return tuple(sorted(kept, key=lambda each: (each.field, each.kind, str(each.value))))
