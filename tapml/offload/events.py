"""What a session tells whoever watches it: the terminal, a report, a test.

A session calls one function with one event after another; it never prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

OperatorState: TypeAlias = Literal[
    "waiting", "compiling", "replaying", "validated", "model check", "moved", "kept", "failed"
]


@dataclass(frozen=True)
class PhaseStarted:
    """A phase begins. `total` counts its units of work; 0 where unknown."""

    name: str
    detail: str = ""
    total: int = 0


@dataclass(frozen=True)
class PhaseProgressed:
    """`done` units of the current phase are done."""

    name: str
    done: int
    total: int = 0
    detail: str = ""


@dataclass(frozen=True)
class PhaseEnded:
    """A phase is over after `seconds`; `detail` sums it up."""

    name: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class OperatorChanged:
    """An operator is in a new state. `numbers` holds what is known about it, as JSON data.

    Among them ``reused`` (all its verdicts are the journal's) and ``again`` (what has changed since
    the journal's, where they were made anew).
    """

    operator: str
    state: OperatorState
    done: int
    total: int
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorsKnown:
    """The operators that will be told about, in the model's order."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class ModelRuns:
    """So many model-wise runs were made, of at most so many as the strategy promises."""

    done: int
    promised: int


@dataclass(frozen=True)
class Note:
    """Something a person should know."""

    text: str


Event: TypeAlias = (
    PhaseStarted
    | PhaseProgressed
    | PhaseEnded
    | OperatorsKnown
    | OperatorChanged
    | ModelRuns
    | Note
)
Watcher: TypeAlias = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Watch nothing."""
