"""Runs an exported torch program and records every node's result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from tapml.importing.exporting import ExportedEntry
from tapml.importing.weights import to_numpy
from tapml.plan.graph_plan import Entry

Array = npt.NDArray[Any]


class Recorded(Mapping[str, Array]):
    """Results by name, as arrays when they are taken.

    A transposed weight is a view; as an array it would be a copy, of every weight of the model.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Record a result."""
        self._tensors[name] = tensor

    def __getitem__(self, name: str) -> Array:
        return to_numpy(self._tensors[name])[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Recorder(fx.Interpreter):
    """An interpreter that records every node's result."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.recorded = Recorded()
        self.outputs: list[Array] = []

    def run_node(self, node: fx.Node) -> Any:
        """Run one node."""
        result = super().run_node(node)
        if node.op == "output":
            self.outputs = [to_numpy(each)[0] for each in result]
        elif isinstance(result, torch.Tensor):
            self.recorded.add(node.name, result)
        elif isinstance(result, tuple | list):
            for index, each in enumerate(result):
                if isinstance(each, torch.Tensor):
                    self.recorded.add(f"{node.name}[{index}]", each)
        return result


def run_torch(exported: ExportedEntry, entry: Entry, tensors: Mapping[str, Array]) -> Recorder:
    """Run an entry's torch program on tensors by storage name."""
    recorder = Recorder(exported.program.graph_module)
    inputs = iter(_in_signature_order(exported, entry, tensors))
    arguments = []
    for spec in exported.program.graph_signature.input_specs:
        parameter = exported.parameters.get(spec.arg.name)
        arguments.append(next(inputs) if parameter is None else parameter)
    with torch.no_grad():
        recorder.run(*arguments, enable_io_processing=False)
    return recorder


def _in_signature_order(
    exported: ExportedEntry, entry: Entry, tensors: Mapping[str, Array]
) -> Iterator[torch.Tensor]:
    description = exported.description
    state = {index: name for name, index, _ in description.state}
    inputs = iter(entry.inputs)
    for index, example in enumerate(description.example_inputs):
        name = state[index] if index in state else next(inputs)
        # Copy, because the interpreter's views must not write to the caller's arrays.
        yield torch.tensor(np.array(tensors[name])).view(example.dtype)
