"""Runs an exported torch program and records its nodes' results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from torch.utils import _pytree as pytree

from tapml.importing.exporting import ExportedEntry
from tapml.importing.fixed_results import decided_results
from tapml.importing.weights import to_numpy
from tapml.plan.graph_plan import Entry
from tapml_targets.errors import MismatchError

Array = npt.NDArray[Any]
# Of the largest number of an output.
_ALLOWED: Final = {
    torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1,
}  # fmt: skip


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
    """An interpreter that records the results that a plan has, by their names there.

    All results would be too many: an unpacked weight, which a product reads, is one of them.
    """

    def __init__(self, module: fx.GraphModule, wanted: Set[str]) -> None:
        super().__init__(module)
        self.recorded = Recorded()
        self._wanted = wanted
        self.outputs: list[Array] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation."""
        # The result of one that is written out may lie in another order than its own did.
        view = target is torch.ops.aten.view.default
        return super().call_function(
            torch.ops.aten.reshape.default if view else target, args, kwargs
        )

    def run_node(self, node: fx.Node) -> Any:
        """Run one node."""
        result = super().run_node(node)
        if node.op == "output":
            self.outputs = [to_numpy(each)[0] for each in result]
        elif isinstance(result, torch.Tensor):
            if node.name in self._wanted:
                self.recorded.add(node.name, result)
        elif isinstance(result, tuple | list):
            for index, each in enumerate(result):
                name = f"{node.name}[{index}]"
                # One of several results may be imported alone, by the node's name.
                if isinstance(each, torch.Tensor) and not self._wanted.isdisjoint(
                    (name, node.name)
                ):
                    self.recorded.add(name, each)
        return result


def run_torch(exported: ExportedEntry, entry: Entry, tensors: Mapping[str, Array]) -> Recorder:
    """Run an entry's torch program on tensors by storage name.

    Raises
    ------
    MismatchError
        If operations were written out, and the program does not give what the module gives.
    """
    recorder = Recorder(exported.program.graph_module, entry.values.keys())
    given = list(_in_signature_order(exported, entry, tensors))
    inputs = iter(given)
    arguments = []
    for spec in exported.program.graph_signature.input_specs:
        parameter = exported.parameters.get(spec.arg.name)
        arguments.append(next(inputs) if parameter is None else parameter)
    with torch.no_grad():
        recorder.run(*arguments, enable_io_processing=False)
        if exported.written_out:
            with decided_results():
                own = pytree.tree_leaves(exported.description.module(*given))
            _compare(exported.description.name, recorder.outputs, own)
    return recorder


def _compare(name: str, ours: Sequence[Array], own: Sequence[torch.Tensor]) -> None:
    real = (torch.view_as_real(each) if each.is_complex() else each for each in own)
    for number, (here, there) in enumerate(zip(ours, real, strict=True)):
        one, other = torch.from_numpy(here).view(there.dtype).double(), there.double()
        scale = float(other[other.isfinite()].abs().max()) if other.isfinite().any() else 1.0
        allowed = _ALLOWED.get(there.dtype, 0.0) * scale
        if not torch.allclose(one, other, rtol=0, atol=allowed, equal_nan=True):
            raise MismatchError(
                f"output {number} of {name!r} is not the module's after its operations were "
                "written out (tapml/importing/written_out.py)"
            )


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
