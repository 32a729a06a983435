"""Events of a run, for its watchers: the terminal, the live file, a report, a test.

A run never prints; it passes each event to one function. Each kind of work adds its own events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Event:
    """Base class of events."""


@dataclass(frozen=True)
class PhaseStarted(Event):
    """A phase begins. `total` is its number of work units; 0 if unknown."""

    name: str
    detail: str = ""
    total: int = 0


@dataclass(frozen=True)
class PhaseProgressed(Event):
    """`done` units of the current phase are done."""

    name: str
    done: int
    total: int = 0
    detail: str = ""


@dataclass(frozen=True)
class PhaseEnded(Event):
    """A phase ended after `seconds`; `detail` summarizes it."""

    name: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class Note(Event):
    """A message for the user."""

    text: str


Watcher: TypeAlias = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Ignore the event."""
