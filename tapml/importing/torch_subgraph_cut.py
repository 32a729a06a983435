"""Cuts an operator's torch operations out of the exported program.

The values of a plan have the names of the FX nodes that return them, so a cut starts at a call's
outputs and walks back to its inputs; everything between is the sub-graph. If the two do not meet -
the importer split a node into several operators, or folded a computation into a constant that torch
does not have - there is no sub-graph, and the reason is stored instead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from tapml.importing.exporting import ExportedEntry
from tapml.importing.operators import OperatorTable, parameter_names
from tapml.importing.torch_program import NoSubgraphError, TorchProgram
from tapml.importing.unpacked_form import OPERATION as UNPACK_WEIGHT
from tapml.importing.unpacked_form import unpacked_form
from tapml.importing.weights import WeightTable
from tapml.plan.graph_plan import CallStep, Entry
from tapml.plan.torch_subgraph import (
    MAX_NODES,
    Argument,
    DataType,
    Extent,
    Reference,
    Text,
    TorchInput,
    TorchNode,
    TorchSubgraph,
    split_operation,
)
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, product

Array = npt.NDArray[Any]

# Where a tensor is stored does not change its values.
_PLACEMENT: Final = frozenset({"device", "layout", "memory_format", "non_blocking", "pin_memory"})


def add_torch_forms(
    exported: ExportedEntry, entry: Entry, table: OperatorTable, weights: WeightTable
) -> None:
    """Cut the sub-graph of every call site of `entry` and add it to `table`."""
    program = TorchProgram(exported, entry, weights)
    for call in entry.calls:
        writes = table.writes(call.operator)
        try:
            subgraph = _Cut(program, call, writes).subgraph()
        except (NoSubgraphError, InputError) as error:
            table.add_torch_form(call.operator, call.site, None, str(error))
        else:
            table.add_torch_form(call.operator, call.site, subgraph)


class _Cut:
    """The sub-graph of one call site under construction."""

    def __init__(self, program: TorchProgram, call: CallStep, writes: int) -> None:
        self._program = program
        values = program.entry.values
        reads = len(call.arguments) - writes
        names = parameter_names(reads, writes)
        self._read = {
            values[argument].storage: (parameter, values[argument].shape)
            for argument, parameter in zip(call.arguments[:reads], names, strict=False)
        }
        self._written = [values[argument] for argument in call.arguments[reads:]]
        self._constants = {
            storage: program.weights.arrays[storage]
            for storage in self._read
            if storage in program.weights.constants
        }
        self._inputs: dict[tuple[fx.Node, int | None], TorchInput] = {}
        self._nodes: dict[fx.Node | str, TorchNode] = {}

    def subgraph(self) -> TorchSubgraph:
        outputs = [self._reference(*self._result(value.storage)) for value in self._written]
        self._require_all_computed()
        return TorchSubgraph(
            tuple(self._inputs.values()), tuple(self._nodes.values()), tuple(outputs)
        )

    def _require_all_computed(self) -> None:
        """Refuse a sub-graph that recomputes an input of the operator.

        The operator's input has been rounded and torch's intermediate has not, so the two would
        differ even if both are correct.
        """
        used = {each.parameter for each in self._inputs.values()}
        for storage, (parameter, _) in self._read.items():
            made = self._program.entry.storages[storage].lifetime == "activation"
            if made and parameter not in used:
                raise NoSubgraphError(
                    f"it reads {storage}, a step inside a torch operation that cannot be split"
                )

    def _result(self, storage: str) -> tuple[fx.Node, int | None]:
        """The FX node whose result a written storage holds."""
        for name, value in self._program.entry.values.items():
            if value.storage == storage:
                base, _, index = name.partition("[")
                if base in self._program.nodes:
                    return self._program.nodes[base], int(index[:-1]) if index else None
        raise NoSubgraphError(f"its output {storage} is an intermediate of a torch operation")

    def _reference(self, node: fx.Node, index: int | None = None) -> Reference:
        node, index = _source(node, index)
        read = self._input(node, index)
        return read if read is not None else Reference(self._node(node).name, index)

    def _input(self, node: fx.Node, index: int | None) -> Reference | None:
        """A tensor that the operator reads; None if a torch operation of the cut makes it."""
        known = self._inputs.get((node, index))
        if known is not None:
            return Reference(known.name)
        read = self._as_read(node, index)
        if read is not None:
            parameter, given = read
            shape = self._program.shape(node, index)
            _check_elements(parameter, given, shape)
            made = TorchInput(f"i{len(self._inputs)}", parameter, given, shape)
            self._inputs[node, index] = made
            return Reference(made.name)
        if node.op != "call_function":
            raise NoSubgraphError(f"torch reads {node.name}, which is not an input of the operator")
        return None

    def _as_read(
        self, node: fx.Node, index: int | None
    ) -> tuple[str, tuple[Expression, ...]] | None:
        """The parameter that holds a node's tensor, and its shape in the plan."""
        storage = self._program.storage(node, index)
        if storage in self._read:
            return self._read[storage]
        if self._constants:
            for storage, array in self._constants.items():
                if self._program.is_constant(node, array):
                    return self._read[storage]
        return None

    def _node(self, node: fx.Node) -> TorchNode:
        """A torch operation, made after those that it reads: their chain may be long."""
        begun: list[tuple[fx.Node, Iterator[fx.Node]]] = []
        following: fx.Node | None = node if node not in self._nodes else None
        while following is not None or begun:
            if following is not None:
                if len(self._nodes) + len(begun) >= MAX_NODES:
                    raise NoSubgraphError(f"it is made of more than {MAX_NODES} torch operations")
                _require_float64_form(following)
                begun.append((following, iter(following.all_input_nodes)))
            current, reads = begun[-1]
            following = next(filter(None, map(self._missing, reads)), None)
            if following is None:
                begun.pop()
                self._make(current)
        return self._nodes[node]

    def _missing(self, read: fx.Node) -> fx.Node | None:
        """The torch operation that has still to be made before what reads its tensor."""
        if isinstance(read.meta.get("val"), int | torch.SymInt):
            return None
        node, index = _source(read)
        made = self._input(node, index) is not None or node in self._nodes
        return None if made else node

    def _make(self, node: fx.Node) -> None:
        operation = str(node.target)
        if operation == UNPACK_WEIGHT:
            self._unpack(node)
            return
        dtype = _scalar_dtype(node)
        arguments = tuple(self._argument(each, dtype) for each in node.args)
        keywords = tuple(
            (name, self._argument(each, dtype))
            for name, each in node.kwargs.items()
            if name not in _PLACEMENT
        )
        self._nodes[node] = TorchNode(f"n{len(self._nodes)}", operation, arguments, keywords)

    def _unpack(self, node: fx.Node) -> None:
        """Make the ATen operations that unpack a weight."""
        arguments: tuple[Any, ...] = node.args
        *given, bits, zero = arguments
        tensors = [self._reference(each) if isinstance(each, fx.Node) else None for each in given]
        groups = 1 if given[1] is None else int(given[1].meta["val"].shape[-1])
        names = (f"n{index}" for index in count(len(self._nodes)))
        *before, last = unpacked_form(tensors, int(bits), int(zero), groups, names)
        self._nodes.update({each.name: each for each in before})
        self._nodes[node] = last

    def _argument(self, value: Any, dtype: torch.dtype | None) -> Argument:
        if isinstance(value, fx.Node):
            extent = value.meta.get("val")
            if isinstance(extent, int | torch.SymInt):
                return Extent(self._program.extent(extent))
            return self._reference(value)
        if isinstance(value, list | tuple):
            items: tuple[Any, ...] = tuple(self._argument(each, dtype) for each in value)
            return items
        if isinstance(value, torch.SymInt) or type(value) is int:
            return Extent(self._program.extent(value))
        return _plain_argument(value, dtype)


def _source(node: fx.Node, index: int | None = None) -> tuple[fx.Node, int | None]:
    """The node that makes a tensor, and which of its results that is."""
    while node.op == "call_function" and node.target is operator.getitem:
        node, index = node.args  # type: ignore[assignment]
    return node, index


def _require_float64_form(node: fx.Node) -> None:
    operation = str(node.target)
    if operation == UNPACK_WEIGHT:
        return
    if not isinstance(node.target, torch._ops.OpOverload) or operation == "aten.view.dtype":
        raise NoSubgraphError(f"{operation} has no float64 form")
    split_operation(operation)


def _plain_argument(value: Any, dtype: torch.dtype | None) -> Argument:
    """An argument that is neither a tensor nor an integer."""
    if isinstance(value, float):
        return _rounded(value, dtype)
    if isinstance(value, torch.dtype):
        return DataType(str(value).removeprefix("torch."))
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return None
    if value is None or isinstance(value, bool):
        return value
    raise NoSubgraphError(f"a torch operation takes {type(value).__name__} {str(value)[:40]}")


def _check_elements(
    parameter: str, given: Sequence[Expression], shape: Sequence[Expression]
) -> None:
    """Check that static shapes have equal sizes; symbolic ones are checked at run time."""
    counts = product(given), product(shape)
    if all(isinstance(count, int) for count in counts) and counts[0] != counts[1]:
        raise NoSubgraphError(
            f"{parameter} has {counts[0]} elements in the plan and {counts[1]} in torch"
        )


def _scalar_dtype(node: fx.Node) -> torch.dtype | None:
    """The dtype in which an operation uses its floating-point scalars."""
    operands = (each.meta.get("val") for each in node.all_input_nodes)
    for value in (*operands, node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            return value.dtype
    return None


def _rounded(value: float, dtype: torch.dtype | None) -> float:
    if dtype is None or not np.isfinite(value):
        return value
    return float(torch.tensor(value, dtype=torch.float64).to(dtype).to(torch.float64))
