"""Invariants as data, and sets of them as JSON."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tapml.durable.files import write_bytes
from tapml.invariants.precondition import Precondition, text_of
from tapml.invariants.relation import Params, Relation, relation_named, relations
from tapml_targets.errors import InputError

FORMAT: Final = "tapml-invariants/1"
CURATED: Final = {
    path.name.partition(".")[0]: path
    for path in sorted((Path(__file__).parent / "curated").glob("*.json.gz"))
} | {"pytorch": Path(__file__).parent / "curated" / "pytorch.json.gz"}
"""Sets that come with tapml, by name; compressed, as they are on every device."""
_LARGEST_FILE: Final = 256 << 20
_ID_LETTERS: Final = 12
# The order of a set: rules that name causes, then the loop, then state, then single APIs.
_ORDER: Final = ("APISequence", "Consistent", "VarPeriodicChange", "EventContain", "APIOutput")


class Invariant(msgspec.Struct, frozen=True):
    """A relation with its parameters and when it applies.

    Attributes
    ----------
    relation
        The relation's name.
    params
        What it relates.
    precondition
        When it applies; a disjunction of conjunctions.
    examples
        How many examples of the training runs it held for.
    runs
        How many training runs had such an example.
    text
        It in English.
    """

    relation: str
    params: dict[str, str]
    precondition: Precondition
    examples: int = 0
    runs: int = 0
    text: str = ""

    @property
    def id(self) -> str:
        """A short digest of what it says; equal for equal invariants of different runs."""
        said = msgspec.json.encode([self.relation, sorted(self.params.items()), self.precondition])
        return hashlib.sha256(said).hexdigest()[:_ID_LETTERS]


def sentence(relation: str, params: Params, precondition: Precondition) -> str:
    """An invariant in English."""
    said = relation_named(relation).sentence(params)
    when = text_of(precondition)
    return f"{said[:-1]}, if {when}." if when else said


class InvariantSet(msgspec.Struct, frozen=True):
    """Invariants of one or more runs.

    Attributes
    ----------
    format
        ``tapml-invariants/1``.
    runs
        Where they come from: a line per run.
    invariants
        The most telling first.
    """

    format: str
    runs: list[str]
    invariants: list[Invariant]

    def without(self, ids: Collection[str]) -> InvariantSet:
        """The set without suppressed invariants, whose ids may be cut.

        Raises InputError if an id is that of no invariant.
        """
        for prefix in ids:
            if not any(each.id.startswith(prefix) for each in self.invariants):
                raise InputError(
                    f"no invariant has an id that begins with {prefix!r}; `tapml invariants show` "
                    "prints the ids of a set"
                )
        kept = [each for each in self.invariants if not each.id.startswith(tuple(ids))]
        return msgspec.structs.replace(self, invariants=kept)

    def selected(self, count: int) -> InvariantSet:
        """The first `count` invariants, of all relations in turn."""
        by_relation: dict[str, list[Invariant]] = {}
        for each in self.invariants:
            by_relation.setdefault(each.relation, []).append(each)
        chosen: list[Invariant] = []
        while len(chosen) < count and any(by_relation.values()):
            for waiting in by_relation.values():
                if waiting and len(chosen) < count:
                    chosen.append(waiting.pop(0))
        keep = {each.id for each in chosen}
        return msgspec.structs.replace(
            self, invariants=[each for each in self.invariants if each.id in keep]
        )


def write_set(found: InvariantSet, path: Path) -> None:
    """Write a set, compressed where the file's name says so. Raises SetupError if that fails."""
    data = msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    write_bytes(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_set(path: Path) -> InvariantSet:
    """Read a set: a file, or the name of a curated one.

    Raises
    ------
    InputError
        If it is none, of another version, or names a relation that does not exist here.
    """
    path = CURATED.get(str(path), path)
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(f"{path} is too large for a set of invariants")
        data = path.read_bytes()
        # Only what comes with tapml: a stranger's small file may hold more than there is room for.
        found = msgspec.json.decode(
            gzip.decompress(data) if path in CURATED.values() else data, type=InvariantSet
        )
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is no set of invariants: {error}; write one with `tapml invariants infer`"
        ) from error
    if found.format != FORMAT:
        raise InputError(
            f"{path} has the format {found.format[:60]!r}; this tapml reads {FORMAT!r}. Infer it "
            "with this version"
        )
    for each in found.invariants:
        relation = relation_named(each.relation)
        try:
            relation.sentence(each.params)
            relation.concerns(each.params)
        except KeyError as error:
            raise InputError(
                f"{path}: an invariant of {each.relation} lacks the parameter {error}"
            ) from None
    return found


def merged(sets: Sequence[InvariantSet]) -> InvariantSet:
    """One set of several, ranked; invariants that say the same are one, and examples add up.

    Of those that differ in a bound alone, the widest says what all do.
    """
    found: dict[str, Invariant] = {}
    bounded: dict[str, Invariant] = {}
    for one in (each for every in sets for each in every.invariants):
        relation = relation_named(one.relation)
        has_bound = type(relation).widest is not Relation.widest
        group = bounded if has_bound else found
        same = [group[one.id]] if one.id in group else []
        if has_bound:
            same = [each for each in group.values() if _says(one, each) or _says(each, one)]
        kept = one
        for other in same:
            del group[other.id]
            kept = msgspec.structs.replace(
                kept if _says(kept, other) else other,
                examples=kept.examples + other.examples,
                runs=kept.runs + other.runs,
            )
        group[kept.id] = kept
    found |= bounded
    runs = [run for each in sets for run in each.runs]
    return ranked(InvariantSet(FORMAT, runs, list(found.values())))


def _says(wide: Invariant, narrow: Invariant) -> bool:
    """Whether the first says what the second does, with the same bound or a wider one."""
    if wide.id == narrow.id:
        return True
    if wide.relation != narrow.relation or wide.precondition != narrow.precondition:
        return False
    both = [wide.params, narrow.params]
    return list(relation_named(wide.relation).widest(both)) == [wide.params]


def ranked(found: InvariantSet) -> InvariantSet:
    """The set with the most telling invariants first."""
    return msgspec.structs.replace(found, invariants=sorted(found.invariants, key=_place))


def _place(invariant: Invariant) -> tuple[int, int, int, str]:
    relation = relations()[invariant.relation]
    known = invariant.relation in _ORDER
    order = _ORDER.index(invariant.relation) if known else len(_ORDER)
    return (
        -1 if relation.structural else order,
        -invariant.runs,
        -invariant.examples,
        invariant.id,
    )
