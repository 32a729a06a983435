"""Protocols of the executor's collaborators: a reference, observers and recorders of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from tapml.execute.arrays import Array, Bytes
from tapml.execute.memory import HostMemory
from tapml.execute.program import Program
from tapml.execute.segments import Segment
from tapml.execute.state import StateCell
from tapml.plan.graph_plan import CallStep

Observer: TypeAlias = Callable[[CallStep, Sequence[Array], Sequence[Array]], None]


class Reference(Protocol):
    """Runs operators on the host: :class:`tapml.compiler.reference_module.ReferenceModule`."""

    def __getitem__(self, operator: str) -> Callable[..., None]:
        """The operator as a function of arrays in parameter order; it fills the outputs."""


class RunSink(Protocol):
    """Records runs. The executor does not reuse memory while the sink holds it."""

    def memory(self, segment: Segment) -> HostMemory | None:
        """The memory for a segment of the current run; None for the executor's own."""

    def begin(self, program: Program) -> None:
        """A run starts."""

    def segment(self, segment: Segment, memory: Bytes) -> None:
        """All tensors of a segment have been written."""

    def end(self, before: Mapping[str, StateCell], after: Mapping[str, StateCell]) -> None:
        """The run has ended; the state before and after it, by state name."""
