"""What the executor asks of others: a reference to run on, observers and recorders of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from tapml.execute.arrays import Array, Bytes
from tapml.execute.memory import HostMemory
from tapml.execute.program import Program
from tapml.execute.segments import Segment
from tapml.execute.state import StateCell
from tapml.graph.plan import CallStep

Observer: TypeAlias = Callable[[CallStep, Sequence[Array], Sequence[Array]], None]


class Reference(Protocol):
    """What runs operators on the host: :class:`tapml.compiler.reference.ReferenceModule`."""

    def __getitem__(self, operator: str) -> Callable[..., None]:
        """The operator as a function over arrays in parameter order, outputs written in place."""


class RunSink(Protocol):
    """Records runs. Memory handed over is not written again while the sink holds it."""

    def memory(self, segment: Segment) -> HostMemory | None:
        """Where a segment of the run in hand lies; None where the sink does not care."""

    def begin(self, program: Program) -> None:
        """A run starts."""

    def segment(self, segment: Segment, memory: Bytes) -> None:
        """All tensors of a segment are written."""

    def end(self, before: Mapping[str, StateCell], after: Mapping[str, StateCell]) -> None:
        """The run is over; the state on entry and its successor, by state name."""
