"""Moves elementwise work on a reshaped product before the reshape.

PyTorch computes a linear layer on a matrix and reshapes the result; elementwise work on it follows
the reshape, and TVM does not fuse across it. The pass rewrites

    add(reshape(matmul(a, b)), c)    to    reshape(add(matmul(a, b), reshape(c)))

and likewise all elementwise work that depends on a single product. Work that joins two products of
the same operand, as in a gated layer, is not moved: the products can then be launched together,
which is impossible if one has to wait for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import tvm
from tvm import relax

from tapml.importing.relax_function import (
    ENTRY,
    Uses,
    bindings,
    is_one_dataflow_block,
    is_same,
    operation_name,
    with_bindings,
    with_main,
)
from tapml.importing.reshape_groups import Group, axis_groups, regrouped, same_shape

_RESHAPE: Final = "relax.reshape"
_PRODUCT: Final = "relax.matmul"
# Each element of the result depends on the operands' elements at the same position.
_ELEMENTWISE: Final = frozenset(
    f"relax.{name}"
    for name in (
        *("abs", "astype", "ceil", "clip", "cos", "erf", "exp", "floor", "isfinite", "isinf"),
        *("isnan", "log", "logical_not", "negative", "round", "rsqrt", "sigmoid", "sign", "sin"),
        *("sqrt", "square", "tanh", "trunc", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu"),
        *("nn.silu", "add", "divide", "equal", "floor_divide", "greater", "greater_equal", "less"),
        *("less_equal", "logical_and", "logical_or", "logical_xor", "maximum", "minimum"),
        *("multiply", "not_equal", "power", "subtract", "where"),
    )
)
# Most operations to fuse with one product; more gains nothing.
_MOST: Final = 16


def sink_reshapes(module: Any) -> Any:
    """Move reshapes of products after the elementwise work that follows, in ``main``."""
    main = module[ENTRY]
    if not is_one_dataflow_block(main):
        return module
    sunk: dict[Any, _Sink] = {}
    uses = Uses(main)
    order = {binding.var: index for index, binding in enumerate(bindings(main))}
    for view in order:
        region = _region(view, uses, order)
        if region and not any(variable in sunk for variable in region.work):
            sunk.update(dict.fromkeys(region.work, region))
    return with_main(module, with_bindings(main, list(_rewritten(main, sunk)))) if sunk else module


@dataclass(frozen=True)
class _Sink:
    """Elementwise work on a view of a product: its variables, and the two shapes."""

    view: Any
    product: Any
    work: tuple[Any, ...]
    groups: tuple[Group, ...]


def _region(view: Any, uses: Uses, order: dict[Any, int]) -> _Sink | None:
    value = uses.made_by[view]
    if operation_name(value) != _RESHAPE:
        return None
    product = value.args[0]
    left = _product_operand(product, uses)
    if left is None or not is_same(uses.only_reader(product), view):
        return None
    groups = axis_groups(view.ty.shape.values, product.ty.shape.values)
    if groups is None:
        return None
    sink = _Sink(view, product, (), tuple(groups))
    work = _work_behind(sink, uses, order)
    inside = {view, *work}
    for variable in work:
        for operand in _tensors(uses.made_by[variable]):
            if operand not in inside and any(
                is_same(other, left) for other in _operands_of_products(operand, uses)
            ):
                return None
    return _Sink(view, product, work, sink.groups) if work else None


def _work_behind(sink: _Sink, uses: Uses, order: dict[Any, int]) -> tuple[Any, ...]:
    """Elementwise variables after a view whose only exit is the last of them."""
    work: list[Any] = []
    closed = 0
    waiting = set(uses.readers(sink.view))
    while waiting and None not in waiting and len(work) < _MOST:
        nearest = min(waiting, key=order.__getitem__)
        if not _can_move(nearest, sink, uses):
            break
        work.append(nearest)
        waiting.discard(nearest)
        if not waiting:
            closed = len(work)
        waiting |= set(uses.readers(nearest))
    return tuple(work[:closed])


def _can_move(variable: Any, sink: _Sink, uses: Uses) -> bool:
    value = uses.made_by[variable]
    shape = sink.view.ty.shape.values
    return (
        operation_name(value) in _ELEMENTWISE
        and same_shape(variable.ty.shape.values, shape)
        and all(
            regrouped(operand.ty.shape.values, shape, sink.product.ty.shape.values, sink.groups)
            is not None
            for operand in _tensors(value)
        )
    )


def _tensors(call: Any) -> list[Any]:
    return [each for each in call.args if isinstance(each.ty, relax.TensorType)]


def _base(variable: Any, uses: Uses) -> Any:
    """The source of a chain of views."""
    while operation_name(uses.made_by.get(variable)) == _RESHAPE:
        variable = uses.made_by[variable].args[0]
    return variable


def _product_operand(variable: Any, uses: Uses) -> Any:
    """The operand of the product in a variable, directly or through elementwise work."""
    value: Any = uses.made_by.get(variable)
    if operation_name(value) == _PRODUCT:
        return _base(value.args[0], uses)
    if operation_name(value) in _ELEMENTWISE:
        for operand in _tensors(value):
            if is_same(uses.only_reader(operand), variable):
                found = _product_operand(operand, uses)
                if found is not None:
                    return found
    return None


def _operands_of_products(variable: Any, uses: Uses, depth: int = 8) -> Iterator[Any]:
    """Operands of all products from which elementwise work computes a variable."""
    value: Any = uses.made_by.get(variable)
    if operation_name(value) == _PRODUCT:
        yield _base(value.args[0], uses)
    elif depth and operation_name(value) in {_RESHAPE, *_ELEMENTWISE}:
        for operand in _tensors(value):
            yield from _operands_of_products(operand, uses, depth - 1)


def _rewritten(main: Any, sunk: dict[Any, _Sink]) -> Iterator[Any]:
    """The bindings of `main`; moved work keeps its names, and its readers read a view."""
    builder = relax.BlockBuilder()
    flat = {sink.view: sink.product for sink in sunk.values()}
    for binding in bindings(main):
        sink = sunk.get(binding.var)
        if sink is None:
            yield binding
            continue
        shape = sink.view.ty.shape.values
        arguments = []
        for argument in binding.value.args:
            if argument in flat and _belongs(argument, sink):
                arguments.append(flat[argument])
                continue
            viewed = _viewed(builder, argument, sink)
            if viewed is not None:
                yield viewed
            arguments.append(argument if viewed is None else viewed.var)
        call = binding.value
        moved = builder.normalize(tvm.ir.Call(call.op, arguments, call.attrs, call.ty_args))
        flat[binding.var] = relax.DataflowVar(binding.var.name, moved.ty)
        yield relax.VarBinding(flat[binding.var], moved)
        value = builder.normalize(relax.op.reshape(flat[binding.var], list(shape)))
        if isinstance(binding.var, relax.DataflowVar):
            yield relax.VarBinding(binding.var, value)
            continue
        # TVM does not make a view of a reshape that is a result.
        view = relax.DataflowVar(binding.var.name, value.ty)
        yield relax.VarBinding(view, value)
        yield relax.VarBinding(binding.var, view)


def _viewed(builder: Any, operand: Any, sink: _Sink) -> Any:
    """A view of an operand that broadcasts to the product; None if it needs no view."""
    if not isinstance(operand.ty, relax.TensorType):
        return None
    shape, target = sink.view.ty.shape.values, sink.product.ty.shape.values
    wanted = regrouped(operand.ty.shape.values, shape, target, sink.groups)
    if wanted is None or same_shape(wanted, operand.ty.shape.values):
        return None
    value = builder.normalize(relax.op.reshape(operand, wanted))
    name = getattr(operand, "name", "constant")
    return relax.VarBinding(relax.DataflowVar(name, value.ty), value)


def _belongs(variable: Any, sink: _Sink) -> bool:
    return any(is_same(variable, each) for each in (sink.view, *sink.work))
