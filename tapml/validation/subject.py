"""What can be validated: operators with tests, and a way to run all of them on a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tapml.compiler.reference_module import ReferenceModule
from tapml.compiler.symbol_ranges import SymbolRanges
from tapml.matrix.compiling import Libraries
from tapml.matrix.implementation import Column
from tapml.matrix.report import Row
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import Operator, Origin


class Subject(Protocol):
    """A module with inputs, a suite, or a model with prompts."""

    @property
    def title(self) -> str:
        """Its name in the report."""

    @property
    def reference(self) -> str:
        """Name of the reference device."""

    @property
    def operators(self) -> Sequence[Operator]:
        """The operators to validate, in graph order."""

    @property
    def ranges(self) -> SymbolRanges | None:
        """Ranges of the shape symbols, for the check of limits; None if unknown."""

    @property
    def store(self) -> Path | None:
        """The file for expectations; None to keep them in memory."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Further facts for the report."""

    def reference_module(self) -> ReferenceModule:
        """The operators on the reference."""

    def origins(self, operator: str) -> tuple[Origin, ...]:
        """The lines and layers of the model that an operator comes from."""

    def tests(self, operator: Operator, probing: Probing) -> Iterable[CarvedCase]:
        """The tests of an operator, with its probes if it has any."""

    def end_to_end(
        self, columns: Sequence[Column], libraries: Mapping[str, Libraries]
    ) -> Row | None:
        """Run the complete subject on each device; None if it has only operators."""
