"""What an import yields; needs neither torch nor TVM, for a session keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt

from tapml.graph.plan import GraphPlan

if TYPE_CHECKING:
    from tapml.graph.exporting import ExportedEntry

Array = npt.NDArray[Any]
CONSTANT: Final = "constants."
"""What the names of weights begin with that are no parameters of the model."""


@dataclass(frozen=True)
class ImportedModel:
    """A plan and what it was made from.

    Attributes
    ----------
    plan
        The graph plan.
    weights
        Raw values by weight name (bfloat16 as uint16), the plan's constants included.
    exported
        The torch programs by entry name, for rooting; empty where the plan came from Relax or from
        the cache.
    """

    plan: GraphPlan
    weights: Mapping[str, Array]
    exported: Mapping[str, ExportedEntry] = field(default_factory=dict)
