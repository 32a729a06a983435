"""The result of an import. Needs neither torch nor TVM, because a session holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt

from tapml.plan.graph_plan import GraphPlan

if TYPE_CHECKING:
    from tapml.importing.exporting import ExportedEntry
    from tapml.importing.onnx_entry import OnnxEntry

Array = npt.NDArray[Any]
CONSTANT: Final = "constants."
"""Prefix of the names of weights that are not parameters of the model."""


@dataclass(frozen=True)
class ImportedModel:
    """A plan with its weights.

    Attributes
    ----------
    weights
        Raw values by weight name (bfloat16 as uint16), the plan's constants included.
    exported
        The torch programs, or the ONNX model, by entry name, for rooting; empty if the plan came
        from Relax or the cache.
    """

    plan: GraphPlan
    weights: Mapping[str, Array]
    exported: Mapping[str, ExportedEntry | OnnxEntry] = field(default_factory=dict)
