"""Runs an operator's torch sub-graph in float64.

The sub-graph is data from a suite, which may come from anyone: only listed ATen operations run
(:mod:`tapml.graph.torch_subgraph_operations`), looked up by name in ``torch.ops.aten``, and how
large a result may be is told before it is made (:mod:`tapml.compare.independent_bounds`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.formats import as_float64
from tapml.compare.independent_bounds import most_elements
from tapml.compiler.native_imports import import_torch
from tapml.graph.torch_subgraph import (
    Argument,
    DataType,
    Extent,
    Reference,
    Text,
    TorchNode,
    TorchSubgraph,
    check_subgraph,
    split_operation,
)
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape, evaluate
from tapml_targets.library import Parameter

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]

MAX_RESULT_BYTES: Final = 4 << 30
"""What one operation of a sub-graph may give."""

_WIDEST_BYTES: Final = 8
# What lay in order in the model may be permuted inside an operator; `view` refuses that, and
# `reshape` gives the same elements in the same order.
_IN_ANY_LAYOUT: Final = {"aten.view.default": "aten.reshape.default"}
_NARROW: Final = ("float16", "bfloat16", "float32")


def torch_is_installed() -> bool:
    """Whether sub-graphs can run here."""
    return importlib.util.find_spec("torch") is not None


def run_subgraph(
    subgraph: TorchSubgraph,
    parameters: Sequence[Parameter],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    symbols: Mapping[str, int],
) -> list[Array]:
    """What torch computes in float64.

    Parameters
    ----------
    subgraph
        From the operator's ``torch_forms``.
    parameters
        The operator's.
    inputs
        Raw inputs, one per parameter that is read.
    outputs
        Raw outputs of any platform: their shapes and integer dtypes are what is returned.
    symbols
        Shape symbols that no input's shape gives.

    Returns
    -------
    list
        One array per parameter that is written: float64, or the numpy dtype of integers.

    Raises
    ------
    InputError
        If the sub-graph is not a valid one, does not fit the tensors, or torch refuses it.
    """
    import_torch()
    import torch

    check_subgraph(subgraph, parameters)
    read = [p for p in parameters if p.role != "output"]
    written = [p for p in parameters if p.role != "input"]
    given = {p.name: (p.dtype, raw) for p, raw in zip(read, inputs, strict=True)}
    known = dict(symbols)
    for each in subgraph.inputs:
        bind_shape(each.given, given[each.parameter][1].shape, known, each.parameter)
    values: dict[str, Any] = {}
    try:
        with torch.no_grad():
            for each in subgraph.inputs:
                shape = [evaluate(extent, known) for extent in each.shape]
                values[each.name] = _widened(*given[each.parameter]).reshape(shape)
            for node in subgraph.nodes:
                values[node.name] = _Call(node, values, known).result()
            results = [_pick(output, values) for output in subgraph.outputs]
    except (RuntimeError, IndexError, TypeError, ValueError, MemoryError) as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"torch does not run the sub-graph: {line}") from error
    return [
        _plain(result, parameter.dtype, like)
        for result, parameter, like in zip(results, written, outputs, strict=True)
    ]


def _widened(dtype: str, raw: Array) -> torch.Tensor:
    """A raw array as a tensor: float64 for every floating-point dtype."""
    import torch

    if lookup(dtype).packing != 1:
        raise InputError(f"{dtype} tensors have no form in torch")
    plain = as_float64(raw, dtype) if lookup(dtype).is_float else raw
    # torch warns of arrays it may not write to.
    return torch.from_numpy(np.array(plain, order="C"))


def _plain(result: Any, dtype: str, like: Array) -> Array:
    """A result under the shape, and where both are integers the dtype, of a written parameter."""
    array: Array = result.detach().contiguous().numpy()
    if array.size != like.size:
        raise InputError(
            f"the torch sub-graph gives {array.size} elements where the operator writes {like.size}"
        )
    array = array.reshape(like.shape)
    # A fraction that an import made an integer of stays one, so that the two differ.
    fractional = lookup(dtype).is_float or array.dtype == np.float64
    return array.astype(np.float64 if fractional else like.dtype)


def _pick(reference: Reference, values: Mapping[str, Any]) -> Any:
    value = values[reference.name]
    if reference.index is not None:
        value = value[reference.index]
    elif isinstance(value, list | tuple):
        # An operation that gives several tensors may be imported as the first of them alone.
        value = value[0]
    return value


@cache
def _overload(operation: str) -> Any:
    """The overload of an allowed operation; it changes nothing in place."""
    import torch

    packet_name, overload_name = split_operation(_IN_ANY_LAYOUT.get(operation, operation))
    packet = getattr(torch.ops.aten, packet_name, None)
    overload = getattr(packet, overload_name, None)
    if not isinstance(overload, torch._ops.OpOverload) or overload.namespace != "aten":
        raise InputError(f"this version of torch has no operation {operation!r}")
    if overload._schema.is_mutable:
        raise InputError(f"the torch operation {operation!r} changes its arguments")
    return overload


class _Call:
    """One node with its arguments, in float64."""

    def __init__(
        self, node: TorchNode, values: Mapping[str, Any], symbols: Mapping[str, int]
    ) -> None:
        self._overload = _overload(node.operation)
        self._name = node.operation
        self._packet, _ = split_operation(node.operation)
        self._symbols = symbols
        self._values = values
        self.arguments = [self._argument(each) for each in node.arguments]
        self.keywords = {name: self._argument(each) for name, each in node.keywords}

    def result(self) -> Any:
        """Tensor or tensors, every floating-point one float64."""
        import torch

        self._require_bounded()
        result = self._overload(*self.arguments, **self.keywords)
        # Narrow without a floating-point operand: integers that torch divides or scales in its
        # default dtype.
        operands = [each for each in _flat(self.arguments) if isinstance(each, torch.Tensor)]
        if operands and any(_is_narrow(each) for each in _flat(result)):
            self.arguments = [_without_integers(each) for each in self.arguments]
            result = self._overload(*self.arguments, **self.keywords)
        if isinstance(result, torch.Tensor):
            return result.double() if _is_narrow(result) else result
        return [each.double() if _is_narrow(each) else each for each in result]

    def _require_bounded(self) -> None:
        """Refuse an operation that may give more than ``MAX_RESULT_BYTES``.

        Raises
        ------
        InputError
            With the operation and the bytes.
        """
        given = [
            self.arguments[position]
            if position < len(self.arguments)
            else self.keywords.get(argument.name, argument.default_value)
            for position, argument in enumerate(self._overload._schema.arguments)
        ]
        try:
            size = most_elements(self._packet, given) * _WIDEST_BYTES
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self._name} of a torch sub-graph: {error}") from error
        if size > MAX_RESULT_BYTES:
            raise InputError(
                f"{self._name} of a torch sub-graph gives up to {size} bytes, at most "
                f"{MAX_RESULT_BYTES} are allowed"
            )

    def _argument(self, argument: Argument) -> Any:
        import torch

        if isinstance(argument, Reference):
            return _pick(argument, self._values)
        if isinstance(argument, Extent):
            return evaluate(argument.value, self._symbols)
        if isinstance(argument, DataType):
            name = "float64" if argument.name in _NARROW else lookup(argument.name).name
            return getattr(torch, name)
        if isinstance(argument, Text):
            return argument.value
        if isinstance(argument, tuple):
            return [self._argument(each) for each in argument]
        return argument


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in _flat(each)]
    return [value]


def _is_narrow(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).removeprefix("torch.") in _NARROW


def _without_integers(value: Any) -> Any:
    import torch

    if isinstance(value, list):
        return [_without_integers(each) for each in value]
    if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
        return value.double()
    return value
