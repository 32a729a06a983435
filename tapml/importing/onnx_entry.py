"""An imported ONNX model with its values in onnxruntime, which its plan is rooted in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt

from tapml.models.onnx_file import OnnxModel, run_onnx
from tapml.plan.graph_plan import Entry

Array = npt.NDArray[Any]
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class OnnxEntry:
    """An imported model and the names that its nodes have in the plan."""

    model: OnnxModel
    names: Mapping[str, str]

    @property
    def state(self) -> tuple[tuple[str, int, int], ...]:
        """It has none."""
        return ()

    def run(
        self, entry: Entry, tensors: Mapping[str, Array]
    ) -> tuple[dict[str, Array], list[Array]]:
        """Every value by its name in the plan, and the outputs, in onnxruntime."""
        names = [each.name for each in self.model.stored.inputs]
        inputs = {name: tensors[given] for name, given in zip(names, entry.inputs, strict=True)}
        values = run_onnx(self.model.folded, inputs, hidden=True)
        recorded = {self.names[name]: array for name, array in values.items() if name in self.names}
        return recorded, [values[each.name] for each in self.model.folded.graph.output]


def onnx_entry(model: OnnxModel) -> OnnxEntry:
    """What roots a plan of the model, from the cache as well."""
    return OnnxEntry(model, value_names(model.folded.graph))


def value_names(graph: Any) -> dict[str, str]:
    """The name in the plan of each output of a node: of several, with an index."""
    names: dict[str, str] = {}
    taken = {each.name for each in (*graph.input, *graph.initializer)}
    for node in graph.node:
        name = plain = _UNSAFE.sub("_", node.name).strip("_") or node.op_type
        number = 1
        while name in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name)
        several = len(node.output) > 1
        for index, output in enumerate(node.output):
            names[output] = f"{name}[{index}]" if several else name
    return names
