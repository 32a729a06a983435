"""Cuts the torch operations that an operator was made from out of the exported program.

The values of a plan carry the names of the FX nodes they are results of, so a cut starts at what a
call writes and walks back to what it reads. What lies between is the sub-graph. Where the two do
not meet - the importer made several operators of one node, or folded a computation into a constant
that torch does not have - there is none, and the reason is kept instead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from tapml.compare.formats import as_float64, float_format
from tapml.graph.exporting import ExportedEntry
from tapml.graph.operators import OperatorTable, parameter_names
from tapml.graph.plan import CallStep, Entry
from tapml.graph.torch_subgraph import (
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
from tapml.graph.weights import WeightTable, to_numpy
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, product

Array = npt.NDArray[Any]

# Where a tensor lies and how does not change what it holds.
_PLACEMENT: Final = frozenset({"device", "layout", "memory_format", "non_blocking", "pin_memory"})
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


class _NoSubgraphError(Exception):
    """Says why an operator has no torch sub-graph at a call site."""


def add_torch_forms(
    exported: ExportedEntry, entry: Entry, table: OperatorTable, weights: WeightTable
) -> None:
    """Cut the sub-graph of every call site of `entry` and note it in `table`."""
    program = _Program(exported, entry, weights)
    for call in entry.calls:
        writes = table.writes(call.operator)
        try:
            subgraph = _Cut(program, call, writes).subgraph()
        except (_NoSubgraphError, InputError) as error:
            table.add_torch_form(call.operator, call.site, None, str(error))
        else:
            table.add_torch_form(call.operator, call.site, subgraph)


class _Program:
    """An exported program beside the entry that was made of it."""

    def __init__(self, exported: ExportedEntry, entry: Entry, weights: WeightTable) -> None:
        self.entry = entry
        self.nodes: dict[str, fx.Node] = {node.name: node for node in exported.program.graph.nodes}
        self.weights = weights
        self._exported = exported
        self._symbols = exported.symbols
        self._storages = dict(_placeholder_storages(exported, entry, weights))
        self._constants: dict[fx.Node, torch.Tensor | None] = {}

    def storage(self, node: fx.Node, index: int | None = None) -> str | None:
        """The storage that holds a node's tensor in the plan, where the plan has it."""
        if node.op == "placeholder":
            return self._storages.get(node.name)
        values = self.entry.values
        value = values.get(node.name if index is None else f"{node.name}[{index}]")
        if value is None and index == 0:
            # An operation that gives several tensors may be imported as the first of them alone.
            value = values.get(node.name)
        if value is None:
            return None
        # An input may be called like a node of another name space.
        is_root = value.name == value.storage
        made = self.entry.storages[value.storage].lifetime == "activation"
        return value.storage if made or not is_root else None

    def constant(self, node: fx.Node) -> torch.Tensor | None:
        """What a node gives that depends on no input; None for all others."""
        if node not in self._constants:
            self._constants[node] = self._evaluate(node)
        return self._constants[node]

    def _evaluate(self, node: fx.Node) -> torch.Tensor | None:
        if node.op == "placeholder":
            return self._exported.parameters.get(node.name)
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        found = {each: self.constant(each) for each in node.all_input_nodes}
        if any(value is None for value in found.values()):
            return None
        arguments, keywords = fx.node.map_arg((node.args, node.kwargs), lambda each: found[each])
        with torch.no_grad():
            result = node.target(*arguments, **keywords)
        return result if isinstance(result, torch.Tensor) else None

    def extent(self, value: Any) -> Expression:
        """An integer of the program, symbolic or not."""
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
            raise _NoSubgraphError(f"a shape is {value}, which has no form in a plan")
        first, *others = (self.extent(each) for each in value.args)
        for other in others:
            first = (operation, first, other)
        return first

    def shape(self, node: fx.Node, index: int | None) -> tuple[Expression, ...]:
        """Shape of a node's tensor."""
        return tuple(self.extent(each) for each in _tensor(node, index).shape)


def _placeholder_storages(
    exported: ExportedEntry, entry: Entry, weights: WeightTable
) -> Iterator[tuple[str, str]]:
    """Placeholder and the storage it is in the plan."""
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


class _Cut:
    """One call site's sub-graph in the making."""

    def __init__(self, program: _Program, call: CallStep, writes: int) -> None:
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
        self._nodes: dict[fx.Node, TorchNode] = {}

    def subgraph(self) -> TorchSubgraph:
        outputs = [self._reference(*self._result(value.storage)) for value in self._written]
        self._require_all_computed()
        return TorchSubgraph(
            tuple(self._inputs.values()), tuple(self._nodes.values()), tuple(outputs)
        )

    def _require_all_computed(self) -> None:
        """Refuse a sub-graph that computes anew what the operator is given.

        The operator's input has been rounded on the way and torch's has not, so that the two
        would differ where both are right.
        """
        used = {each.parameter for each in self._inputs.values()}
        for storage, (parameter, _) in self._read.items():
            made = self._program.entry.storages[storage].lifetime == "activation"
            if made and parameter not in used:
                raise _NoSubgraphError(
                    f"it reads {storage}, a step inside a torch operation that cannot be split"
                )

    def _result(self, storage: str) -> tuple[fx.Node, int | None]:
        """The FX node that a written storage holds the result of."""
        for name, value in self._program.entry.values.items():
            if value.storage == storage:
                base, _, index = name.partition("[")
                if base in self._program.nodes:
                    return self._program.nodes[base], int(index[:-1]) if index else None
        raise _NoSubgraphError(
            f"what it writes ({storage}) is a step on the way to a torch operation's result"
        )

    def _reference(self, node: fx.Node, index: int | None = None) -> Reference:
        if node.op == "call_function" and node.target is operator.getitem:
            source, position = node.args
            return self._reference(source, position)  # type: ignore[arg-type]
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
            raise _NoSubgraphError(
                f"torch reads {node.name} there, which the operator does not get"
            )
        return Reference(self._node(node).name, index)

    def _as_read(
        self, node: fx.Node, index: int | None
    ) -> tuple[str, tuple[Expression, ...]] | None:
        """The parameter that holds a node's tensor, and the shape it has in the plan."""
        storage = self._program.storage(node, index)
        if storage in self._read:
            return self._read[storage]
        if self._constants:
            for storage, array in self._constants.items():
                if _same_content(self._program, node, array):
                    return self._read[storage]
        return None

    def _node(self, node: fx.Node) -> TorchNode:
        if node in self._nodes:
            return self._nodes[node]
        if len(self._nodes) >= MAX_NODES:
            raise _NoSubgraphError(f"it is made of more than {MAX_NODES} torch operations")
        operation = str(node.target)
        if not isinstance(node.target, torch._ops.OpOverload) or operation == "aten.view.dtype":
            raise _NoSubgraphError(f"{operation} has no float64 form")
        split_operation(operation)
        dtype = _scalar_dtype(node)
        arguments = tuple(self._argument(each, dtype) for each in node.args)
        keywords = tuple(
            (name, self._argument(each, dtype))
            for name, each in node.kwargs.items()
            if name not in _PLACEMENT
        )
        made = TorchNode(f"n{len(self._nodes)}", operation, arguments, keywords)
        self._nodes[node] = made
        return made

    def _argument(self, value: Any, dtype: torch.dtype | None) -> Argument:
        if isinstance(value, fx.Node):
            extent = value.meta.get("val")
            if isinstance(extent, int | torch.SymInt):
                return Extent(self._program.extent(extent))
            return self._reference(value)
        if isinstance(value, list | tuple):
            return tuple(self._argument(each, dtype) for each in value)
        if isinstance(value, torch.SymInt) or type(value) is int:
            return Extent(self._program.extent(value))
        return _plain_argument(value, dtype)


def _plain_argument(value: Any, dtype: torch.dtype | None) -> Argument:
    """An argument that is no tensor and no integer."""
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
    raise _NoSubgraphError(f"a torch operation takes {type(value).__name__} {str(value)[:40]}")


def _same_content(program: _Program, node: fx.Node, array: Array) -> bool:
    """Whether a node is a constant that the importer computed: the same numbers in their order.

    It may have been computed by other code, so a few units in the last place may differ.
    """
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or any(not isinstance(n, int) for n in meta.shape):
        return False
    if meta.numel() != array.size:
        return False
    constant = program.constant(node)
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


def _tensor(node: fx.Node, index: int | None) -> torch.Tensor:
    value = node.meta.get("val")
    if index is not None and isinstance(value, list | tuple):
        value = value[index]
    if not isinstance(value, torch.Tensor):
        raise _NoSubgraphError(f"the torch node {node.name} gives no tensor")
    return value


def _check_elements(
    parameter: str, given: Sequence[Expression], shape: Sequence[Expression]
) -> None:
    """Static shapes must have equally many elements; symbolic ones are checked when they run."""
    counts = product(given), product(shape)
    if all(isinstance(count, int) for count in counts) and counts[0] != counts[1]:
        raise _NoSubgraphError(
            f"{parameter} has {counts[0]} elements in the plan and {counts[1]} in torch"
        )


def _scalar_dtype(node: fx.Node) -> torch.dtype | None:
    """The dtype that floating-point scalars of an operation are used in."""
    operands = (each.meta.get("val") for each in node.all_input_nodes)
    for value in (*operands, node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            return value.dtype
    return None


def _rounded(value: float, dtype: torch.dtype | None) -> float:
    if dtype is None or not np.isfinite(value):
        return value
    return float(torch.tensor(value, dtype=torch.float64).to(dtype).to(torch.float64))
