"""The result of an import. Needs neither torch nor TVM, because a session holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy.typing as npt

from tapml.plan.graph_plan import Entry, GraphPlan

if TYPE_CHECKING:
    from tapml.importing.exporting import ExportedEntry

Array = npt.NDArray[Any]
CONSTANT: Final = "constants."
"""Prefix of the names of weights that are not parameters of the model."""


@runtime_checkable
class OtherProgram(Protocol):
    """What roots an entry that is no torch program: an ONNX model, a definition of mlc-llm."""

    @property
    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Name, input and output of every state."""

    def run(
        self, entry: Entry, tensors: Mapping[str, Array]
    ) -> tuple[dict[str, Array], list[Array]]:
        """Values inside by their names in the plan, and the outputs."""


RootProgram: TypeAlias = "ExportedEntry | OtherProgram"


@dataclass(frozen=True)
class ImportedModel:
    """A plan with its weights.

    Attributes
    ----------
    weights
        Raw values by weight name (bfloat16 as uint16), the plan's constants included.
    exported
        What its entries are rooted in, by name: torch programs, or others; empty if the plan came
        from Relax or the cache.
    """

    plan: GraphPlan
    weights: Mapping[str, Array]
    exported: Mapping[str, RootProgram] = field(default_factory=dict)
