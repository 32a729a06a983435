"""Maps an exported torch program to the plan's entry that was made from it.

Finds the storage in the plan of an FX node's tensor, and converts shapes and constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from tapml.importing.exporting import ExportedEntry
from tapml.importing.weights import WeightTable, to_numpy
from tapml.plan.graph_plan import Entry
from tapml_targets.dtype import dtype as lookup
from tapml_targets.expression import Expression
from tapml_targets.float_formats import as_float64, float_format

Array = npt.NDArray[Any]

_FOLDED_ULPS: Final = 4.0
_SYMPY: Final[Mapping[Any, str]] = {
    sympy.Add: "add",
    sympy.Mul: "mul",
    FloorDiv: "floordiv",
    Mod: "floormod",
    PythonMod: "floormod",
    Max: "max",
    Min: "min",
}


class NoSubgraphError(Exception):
    """Reports why an operator has no torch sub-graph at a call site."""


class TorchProgram:
    """An exported program and the entry that was made from it."""

    def __init__(self, exported: ExportedEntry, entry: Entry, weights: WeightTable) -> None:
        self.entry = entry
        self.nodes: dict[str, fx.Node] = {node.name: node for node in exported.program.graph.nodes}
        self.weights = weights
        self._exported = exported
        self._symbols = exported.symbols
        self._storages = dict(_placeholder_storages(exported, entry, weights))
        self._constants: dict[fx.Node, torch.Tensor | None] = {}

    def storage(self, node: fx.Node, index: int | None = None) -> str | None:
        """The storage of a node's tensor in the plan; None if the plan does not have it."""
        if node.op == "placeholder":
            return self._storages.get(node.name)
        values = self.entry.values
        value = values.get(node.name if index is None else f"{node.name}[{index}]")
        if value is None and index == 0:
            # An operation with several results may be imported as the first of them alone.
            value = values.get(node.name)
        if value is None:
            return None
        # An input may share its name with a node of another name space.
        is_root = value.name == value.storage
        made = self.entry.storages[value.storage].lifetime == "activation"
        return value.storage if made or not is_root else None

    def constant(self, node: fx.Node) -> torch.Tensor | None:
        """The value of a node that depends on no input; otherwise None."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            missing = [each for each in current.all_input_nodes if each not in self._constants]
            if missing and current not in self._constants:
                waiting.extend(missing)
                continue
            waiting.pop()
            if current not in self._constants:
                self._constants[current] = self._evaluate(current)
        return self._constants[node]

    def _evaluate(self, node: fx.Node) -> torch.Tensor | None:
        """The value of a node whose inputs' values are known."""
        if node.op == "placeholder":
            return self._exported.parameters.get(node.name)
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        found = {each: self._constants[each] for each in node.all_input_nodes}
        if any(value is None for value in found.values()):
            return None
        arguments, keywords = fx.node.map_arg((node.args, node.kwargs), lambda each: found[each])
        with torch.no_grad():
            result = node.target(*arguments, **keywords)
        return result if isinstance(result, torch.Tensor) else None

    def extent(self, value: Any) -> Expression:
        """An integer of the program, constant or symbolic."""
        if isinstance(value, torch.SymInt):
            value = value.node.expr
        if isinstance(value, int):
            return value
        if value.is_Integer:
            return int(value)
        if value.is_Symbol:
            return self._symbols.get(str(value), str(value))
        operation = _SYMPY.get(value.func)
        if operation is None:
            raise NoSubgraphError(f"a shape is {value}, which a plan cannot express")
        first, *others = (self.extent(each) for each in value.args)
        for other in others:
            first = (operation, first, other)
        return first

    def shape(self, node: fx.Node, index: int | None) -> tuple[Expression, ...]:
        """Shape of a node's tensor."""
        return tuple(self.extent(each) for each in tensor_of(node, index).shape)

    def is_constant(self, node: fx.Node, array: Array) -> bool:
        """Whether a node equals, up to its shape, a constant that the importer computed.

        Different code may have computed it, so a difference of a few ULPs is accepted.
        """
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor) or any(not isinstance(n, int) for n in meta.shape):
            return False
        if meta.numel() != array.size:
            return False
        constant = self.constant(node)
        if constant is None:
            return False
        own, dtype = to_numpy(constant)
        if own.dtype != array.dtype:
            return False
        if not lookup(dtype).is_float:
            return np.array_equal(own.reshape(-1), array.reshape(-1))
        tolerance = _FOLDED_ULPS * float_format(dtype).epsilon
        first, second = (as_float64(each, dtype).reshape(-1) for each in (own, array))
        return np.allclose(first, second, rtol=tolerance, atol=0.0, equal_nan=True)


def _placeholder_storages(
    exported: ExportedEntry, entry: Entry, weights: WeightTable
) -> Iterator[tuple[str, str]]:
    """Placeholders with their storages in the plan."""
    state = {index: name for name, index, _ in exported.description.state}
    inputs = iter(entry.inputs)
    position = 0
    for spec in exported.program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            yield name, state[position] if position in state else next(inputs)
            position += 1
        elif name in exported.parameters:
            known = weights.name_of(exported.parameters[name])
            if known is not None:
                yield name, known


def tensor_of(node: fx.Node, index: int | None) -> torch.Tensor:
    """Shape and dtype of a node's tensor, or of one of several, without content.

    Raises
    ------
    NoSubgraphError
        If the node does not return a tensor.
    """
    value = node.meta.get("val")
    if index is not None and isinstance(value, list | tuple):
        value = value[index]
    if not isinstance(value, torch.Tensor):
        raise NoSubgraphError(f"the torch node {node.name} does not return a tensor")
    return value
