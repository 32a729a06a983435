"""Events of a migration, besides the phases and notes of every run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tapml.runs.events import Event

OperatorState: TypeAlias = Literal[
    "waiting", "compiling", "replaying", "validated", "model check", "moved", "kept", "failed"
]


@dataclass(frozen=True)
class OperatorChanged(Event):
    """An operator is in a new state. `numbers` is JSON data about it.

    It includes ``reused`` (all its verdicts are from the journal) and ``again`` (what changed since
    the journal's verdicts, if they were made again).
    """

    operator: str
    state: OperatorState
    done: int
    total: int
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorsKnown(Event):
    """The operators that later events are about, in the model's order."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class ModelRuns(Event):
    """Number of model-wise runs so far, and the most that the strategy needs."""

    done: int
    promised: int
