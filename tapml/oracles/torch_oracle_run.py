"""Runs an operator's torch sub-graph in float64.

The sub-graph is untrusted data from a suite: only listed ATen operations run
(:mod:`tapml.plan.torch_subgraph`), looked up by name in ``torch.ops.aten``, and the size of a
result is bounded from the arguments before it is allocated. Torch's meta tensors would give the
exact size, but they load half of its compiler, which takes longer than all sub-graphs of a suite.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.native_imports import import_torch
from tapml.own_operators import own_operators, register
from tapml.own_operators.own_operator import NAMESPACE
from tapml.plan.torch_subgraph import (
    ELEMENTWISE,
    KEEPING,
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
from tapml_targets.float_formats import as_float64
from tapml_targets.library import Parameter

if TYPE_CHECKING:
    import torch


Array = NDArray[Any]

MAX_RESULT_BYTES: Final = 4 << 30
"""Bound on the result of one operation."""

_WIDEST_BYTES: Final = 8
# A contiguous tensor of the model may be permuted inside an operator. `view` refuses that;
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
    """Run a sub-graph in float64.

    Parameters
    ----------
    subgraph
        From the operator's ``torch_forms``.
    parameters
        The operator's.
    inputs
        Raw inputs, one per parameter that is read.
    outputs
        Raw outputs of any platform; the results get their shapes and integer dtypes.
    symbols
        Shape symbols that no input's shape defines.

    Returns
    -------
    list
        One array per parameter that is written: float64, or the numpy dtype of integers.

    Raises
    ------
    InputError
        If the sub-graph is invalid, does not fit the tensors, or torch refuses it.
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
    # torch warns about read-only arrays.
    return torch.from_numpy(np.array(plain, order="C"))


def _plain(result: Any, dtype: str, like: Array) -> Array:
    """A result with the shape, and if both are integers the dtype, of a written parameter."""
    array: Array = result.detach().contiguous().numpy()
    if array.size != like.size:
        raise InputError(
            f"the torch sub-graph gives {array.size} elements where the operator writes {like.size}"
        )
    array = array.reshape(like.shape)
    # A fraction that the import made an integer stays a fraction, so that the two differ.
    fractional = lookup(dtype).is_float or array.dtype == np.float64
    return array.astype(np.float64 if fractional else like.dtype)


def _pick(reference: Reference, values: Mapping[str, Any]) -> Any:
    value = values[reference.name]
    if reference.index is not None:
        value = value[reference.index]
    elif isinstance(value, list | tuple):
        # An operation with several results may be imported as the first one only.
        value = value[0]
    return value


@cache
def _overload(operation: str) -> Any:
    """The overload of an allowed operation, never an in-place one."""
    import torch

    packet_name, overload_name = split_operation(_IN_ANY_LAYOUT.get(operation, operation))
    namespace = operation.partition(".")[0]
    if namespace == NAMESPACE:
        register()
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    overload = getattr(packet, overload_name, None)
    if not isinstance(overload, torch._ops.OpOverload) or overload.namespace != namespace:
        raise InputError(f"this version of torch has no operation {operation!r}")
    if overload._schema.is_mutable:
        raise InputError(f"the torch operation {operation!r} changes its arguments")
    return overload


class _Call:
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
        import torch

        self._require_bounded()
        result = self._overload(*self.arguments, **self.keywords)
        # Narrow without a floating-point operand: torch divides and scales integers in its default
        # dtype.
        operands = [each for each in _flat(self.arguments) if isinstance(each, torch.Tensor)]
        if operands and any(_is_narrow(each) for each in _flat(result)):
            self.arguments = [_without_integers(each) for each in self.arguments]
            result = self._overload(*self.arguments, **self.keywords)
        if isinstance(result, torch.Tensor):
            return result.double() if _is_narrow(result) else result
        return [each.double() if _is_narrow(each) else each for each in result]

    def _require_bounded(self) -> None:
        """Refuse an operation whose result may exceed ``MAX_RESULT_BYTES``.

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


Arguments = Sequence[Any]
_PADDING: Final = (
    "constant_pad_nd",
    "pad",
    *(f"reflection_pad{dimensions}d" for dimensions in (1, 2, 3)),
    *(f"replication_pad{dimensions}d" for dimensions in (2, 3)),
)
_MARGIN: Final = 4
"""Pooling pads by at most half of its window on each side."""


def most_elements(name: str, arguments: Arguments) -> int:
    """A bound on the elements of each result of an operation.

    Parameters
    ----------
    name
        Of the packet.
    arguments
        In the order of the overload's schema; trailing ones may be missing.

    Raises
    ------
    TypeError, ValueError, IndexError, AttributeError, KeyError
        If the operation does not take these arguments.
    """
    if name in ELEMENTWISE:
        return math.prod(np.broadcast_shapes(*(t.shape for t in _tensors(arguments))))
    if name in KEEPING or name in own_operators():
        operands = sum(int(tensor.numel()) for tensor in _tensors(arguments))
        return _MARGIN * operands + 1
    return int(RULES[name](arguments))


def _tensors(arguments: Any) -> list[Any]:
    if isinstance(arguments, list | tuple):
        return [tensor for each in arguments for tensor in _tensors(each)]
    return [arguments] if hasattr(arguments, "numel") else []


def _integers(arguments: Any) -> list[int]:
    if isinstance(arguments, list | tuple):
        return [number for each in arguments for number in _integers(each)]
    return [abs(arguments)] if type(arguments) is int else []


def _product(left: Any, right: Any) -> int:
    """A (batched) matrix product; vectors are matrices of one row."""
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    rows = left.shape[-2] if left.ndim > 1 else 1
    columns = right.shape[-1] if right.ndim > 1 else 1
    return int(math.prod(batch) * rows * columns)


def _convolution(a: Arguments) -> int:
    x, weight = a[0], a[1]
    spatial = zip(x.shape[2:], weight.shape[2:], strict=True)
    reach = max(_integers([a[3], a[4], a[5], a[7]]), default=1) + 1
    outputs = weight.shape[1] * a[8] if a[6] else weight.shape[0]
    extents = [
        (extent + 2 * reach) * (reach if a[6] else 1) + kernel * reach for extent, kernel in spatial
    ]
    return int(x.shape[0] * outputs * math.prod(extents))


def _expanded(a: Arguments) -> int:
    own = a[0].shape
    sizes = list(a[1])
    own = [1] * (len(sizes) - len(own)) + list(own)
    return math.prod(o if size == -1 else abs(size) for o, size in zip(own, sizes, strict=True))


def _padded(a: Arguments) -> int:
    widest = max(_integers(a[1]), default=0)
    extents: list[int] = [extent + 2 * widest for extent in a[0].shape]
    return math.prod(extents)


def _indexed(a: Arguments) -> int:
    indices = [index for index in a[1] if index is not None]
    chosen = math.prod(np.broadcast_shapes(*(index.shape for index in indices)))
    others = [
        extent
        for axis, extent in enumerate(a[0].shape)
        if axis >= len(a[1]) or a[1][axis] is None or a[1][axis].ndim == 0
    ]
    return int(chosen * math.prod(others))


def _resampled(a: Arguments) -> int:
    x, sizes = a[0], a[1]
    if sizes:
        return int(math.prod(x.shape[:2]) * math.prod(_integers(sizes)))
    factors = a[-1] or []
    return int(x.numel() * math.prod(max(1.0, abs(float(each))) for each in factors)) + 1


def _counted(a: Arguments) -> int:
    numbers = [each for each in a if type(each) in (int, float)]
    start, end = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = numbers[2] if len(numbers) > 2 else 1
    return int(abs((end - start) / step)) + 2


def _made(a: Arguments) -> int:
    return math.prod(_integers([each for each in a if isinstance(each, list)]))


RULES: Final[Mapping[str, Callable[[Arguments], int]]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot"), lambda a: _product(a[0], a[1])),
    **dict.fromkeys(
        ("addmm", "addmv", "baddbmm", "addbmm"), lambda a: a[0].numel() + _product(a[1], a[2])
    ),
    "linear": lambda a: math.prod(a[0].shape[:-1]) * math.prod(a[1].shape[:-1]),
    "outer": lambda a: a[0].numel() * a[1].numel(),
    "scaled_dot_product_attention": lambda a: (
        _product(a[0], a[1].transpose(-1, -2)) + a[0].numel() * a[2].shape[-1]
    ),
    "convolution": _convolution,
    **dict.fromkeys(("expand", "broadcast_to"), _expanded),
    "expand_as": lambda a: a[1].numel(),
    **dict.fromkeys(("repeat", "tile"), lambda a: a[0].numel() * math.prod(_integers(a[1]))),
    **dict.fromkeys(_PADDING, _padded),
    "embedding": lambda a: a[1].numel() * math.prod(a[0].shape[1:]),
    "gather": lambda a: a[2].numel(),
    "take": lambda a: a[1].numel(),
    "index": _indexed,
    "index_select": lambda a: a[0].numel() // max(1, a[0].shape[a[1]]) * a[2].numel(),
    **dict.fromkeys(
        ("upsample_bilinear2d", "upsample_bicubic2d", "upsample_nearest2d"), _resampled
    ),
    "arange": _counted,
    "linspace": lambda a: int(a[2]),
    "eye": lambda a: max(_integers(a)) ** 2,
    **dict.fromkeys(("full", "new_full", "new_ones", "new_zeros", "ones", "zeros"), _made),
}
"""Of every operation in ``GROWING``."""
