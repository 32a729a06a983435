"""What a relation is: a kind of rule that can be proposed from runs and tested on a run.

Inference and checking call the same :meth:`Relation.examples`, window by window, so an invariant
means the same in both, on a stored trace and while a script trains.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from tapml.invariants.record import Record, Window
from tapml_targets.errors import InputError, SetupError

ENTRY_POINTS: Final = "tapml.invariants.relations"
"""The group of entry points by which other packages add relations."""

Params: TypeAlias = Mapping[str, str]
Memory: TypeAlias = dict[Hashable, Any]


class Example(NamedTuple):
    """One place of a run where a rule applies.

    Attributes
    ----------
    holds
        Whether the rule holds there.
    records
        The records the rule relates; preconditions are tested on them.
    subject
        The variable or call.
    found
        What was seen there, with its values; needed only where the rule does not hold.
    """

    holds: bool
    records: tuple[Record, ...]
    subject: str
    found: str

    @property
    def last(self) -> Record:
        """The record at which the rule could be decided."""
        return self.records[-1]


class Relation:
    """A kind of rule. A subclass in a file of its own, whose instance ``RELATION`` is found there.

    Attributes
    ----------
    name
        Its name in sets of invariants.
    structural
        Whether a violation names a cause rather than an effect; such a rule heads its group.
    least
        How many examples must hold before a rule counts as learned.
    apis
        Names of the parameters that hold an API.
    avoided
        Fields that no precondition of this relation may use: they repeat the rule itself.
    batches
        Whether it reads the digests of a data loader's batches.
    own
        Whether its rules are about the program that they were learned from, and no other.
    between, inputs, fresh, targets, norms, scores, saved, origins
        As of :class:`~tapml.invariants.needs.Needs`.
    """

    name: ClassVar[str]
    structural: ClassVar[bool] = False
    least: ClassVar[int] = 2
    apis: ClassVar[tuple[str, ...]] = ()
    avoided: ClassVar[tuple[str, ...]] = ()
    batches: ClassVar[bool] = False
    own: ClassVar[bool] = False
    between: ClassVar[bool] = False
    inputs: ClassVar[bool] = False
    fresh: ClassVar[bool] = False
    targets: ClassVar[bool] = False
    norms: ClassVar[bool] = False
    scores: ClassVar[bool] = False
    saved: ClassVar[bool] = False
    origins: ClassVar[bool] = False

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Rules that may hold in a run: those it shows at least once."""
        raise NotImplementedError

    def widest(self, found: Sequence[Params]) -> Sequence[Params]:
        """Of what several runs propose: a rule with a bound is about the widest that was seen."""
        return found

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Where a rule applies in a window; `memory` is the rule's own from window to window."""
        raise NotImplementedError

    def sentence(self, params: Params) -> str:
        """The rule in English."""
        raise NotImplementedError

    def concerns(self, params: Params) -> frozenset[str]:
        """APIs and kinds of variables of the rule; rules that share one are about one thing."""
        raise NotImplementedError

    def calls(self, params: Params) -> frozenset[str]:
        """The APIs whose calls the rule looks at: what a watched run has to record."""
        return frozenset(params[name] for name in self.apis if name in params)

    def missing(
        self, params: Params, called: Mapping[str, Record], steps: int
    ) -> tuple[str, str] | None:
        """Why a rule never applied in a run of the program that it was learned from.

        `called` has the first call of each API, and of each class of models after ``model.forward``
        and a space; `steps` is the number of the last step. The answer is a call that the run
        makes, and what it does not do about it; None if that is no error.
        """
        return None

    def contents(self, params: Params) -> Iterable[tuple[str, str]]:
        """Pairs of an API and what the rule looks for inside it; a watched run sees no other."""
        return ()


def topic(name: str) -> str:
    """What an API or variable is about, for grouping."""
    if name.startswith("torch.optim") and "lr_scheduler" not in name:
        return "optimizer"
    if name.startswith("torch.amp.GradScaler."):
        return "GradScaler"
    return name


@cache
def relations() -> Mapping[str, Relation]:
    """All relations by name: the files of ``tapml/invariants/relations``, then entry points.

    Raises
    ------
    SetupError
        If an entry point has no relation, or two relations have one name.
    """
    package = import_module("tapml.invariants.relations")
    found: dict[str, Relation] = {}
    for module in iter_modules(package.__path__):
        _add(found, import_module(f"{package.__name__}.{module.name}").RELATION, module.name)
    if _entry_points_exist():
        from importlib.metadata import entry_points

        for entry in entry_points(group=ENTRY_POINTS):
            _add(found, getattr(entry.load(), "RELATION", None), entry.value)
    return found


def _entry_points_exist() -> bool:
    """Whether a package has relations; importlib.metadata reads much more to say that of none."""
    for place in map(Path, sys.path):
        if place.is_file():
            return True
        for path in place.glob("*-info/entry_points.txt"):
            if ENTRY_POINTS in path.read_text("utf-8", errors="replace"):
                return True
    return False


def _add(found: dict[str, Relation], relation: object, place: str) -> None:
    if not isinstance(relation, Relation):
        raise SetupError(f"{place} has no relation: expected RELATION, a tapml Relation")
    if relation.name in found:
        raise SetupError(f"two relations have the name {relation.name!r}; one is in {place}")
    found[relation.name] = relation


def relation_named(name: str) -> Relation:
    """The relation of a name. Raises InputError if there is none."""
    try:
        return relations()[name]
    except KeyError:
        known = ", ".join(sorted(relations()))
        raise InputError(
            f"there is no relation {name!r}; known are {known}. Install the package that has it"
        ) from None


def short_name(api: str) -> str:
    """An API without what every reader can add: ``Optimizer.step``, ``Linear.forward``."""
    parts = api.split(".")
    if len(parts) > 2 and (parts[-2][:1].isupper() or parts[-2] in ("functional", "model")):
        return ".".join(parts[-2:])
    if parts[0] == "__main__":
        return ".".join(parts[1:])
    return api
