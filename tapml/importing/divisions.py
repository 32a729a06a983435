"""What a division of floating-point numbers leaves, and its whole part, as PyTorch finds them.

A product of a rounded quotient is off by a whole divisor near multiples of it. This is the long
division in binary, of which every difference is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx

from tapml.importing.tir_patterns import OPAQUE
from tapml.own_operators.wkv import of_length

if TYPE_CHECKING:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

Converter = Callable[[fx.Node], Any]
_NAMES: Final = (
    *("fmod.Scalar", "fmod.Tensor", "remainder.Scalar", "remainder.Tensor"),
    *("div.Tensor_mode", "div.Scalar_mode"),
)
# Of the quotient: a larger one leaves what is no number.
_BITS: Final = 64
_PART: Final = 21


def converters(
    importer: ExportedProgramImporter, given: dict[str, Converter]
) -> dict[str, Converter]:
    """The converters by the name of the overload; those `given` convert what is no float."""

    def convert(name: str, node: fx.Node) -> Any:
        kind = str(node.meta["val"].dtype).removeprefix("torch.")
        mode = node.kwargs.get("rounding_mode")
        if "float" not in kind or (name.startswith("div") and mode != "floor"):
            return given[name](node)
        emit = importer.block_builder.emit
        wide = kind if kind in {"float32", "float64"} else "float32"
        shape = relax.ShapeExpr(_extents(importer, node))
        operand, divisor = (
            emit(relax.op.broadcast_to(_as(_rounded(each, node), wide, emit), shape))
            for each in importer.retrieve_args(node)[:2]
        )
        left = _left(importer, operand, divisor, shape)
        if not name.startswith("fmod"):
            left = _rounded_down(name, left, operand, divisor, wide, emit)
        return left if wide == kind else emit(relax.op.astype(left, kind))

    return {name: partial(convert, name) for name in _NAMES}


def _extents(importer: ExportedProgramImporter, node: fx.Node) -> list[Any]:
    """Of the result, as TVM finds them for a sum."""
    first, second = importer.retrieve_args(node)[:2]
    sides = [each for each in (first, second) if isinstance(each, relax.Expr)]
    if len(sides) == 1:
        return list(sides[0].ty.shape)
    like = [relax.op.astype(each, "float32") for each in sides]
    return list(importer.block_builder.normalize(relax.op.add(*like)).ty.shape)


def _rounded(value: Any, node: fx.Node) -> Any:
    """A number as PyTorch takes it, in the dtype of the result."""
    if isinstance(value, relax.Expr):
        return value
    return torch.tensor(value, dtype=node.meta["val"].dtype).item()


def _as(value: Any, kind: str, emit: Callable[[Any], Any]) -> Any:
    if not isinstance(value, relax.Expr):
        return relax.const(np.asarray(value, kind), kind)
    return value if str(value.ty.dtype) == kind else emit(relax.op.astype(value, kind))


def _rounded_down(
    name: str, left: Any, operand: Any, divisor: Any, kind: str, emit: Callable[[Any], Any]
) -> Any:
    """What a division that rounds down leaves, or its whole part."""
    op, zero = relax.op, relax.const(0.0, kind)
    below = op.logical_and(op.less(left, zero), op.greater(divisor, zero))
    above = op.logical_and(op.greater(left, zero), op.less(divisor, zero))
    other = emit(op.logical_or(below, above))
    if name.startswith("remainder"):
        return emit(op.where(other, op.add(left, divisor), left))
    whole = emit(op.round(op.divide(op.subtract(operand, left), divisor)))
    whole = emit(op.where(other, op.subtract(whole, relax.const(1.0, kind)), whole))
    plain = emit(op.floor(op.divide(operand, divisor)))
    # Of a quotient that is too large, all that is known.
    endless = emit(op.logical_and(op.isinf(operand), op.not_equal(divisor, zero)))
    plain = emit(op.where(endless, relax.const(np.nan, kind), plain))
    return emit(op.where(op.isnan(left), plain, whole))


def _left(importer: ExportedProgramImporter, operand: Any, divisor: Any, shape: Any) -> Any:
    builder = importer.block_builder
    count: Any = tirx.IntImm("int64", 1)
    for extent in shape.values:
        count = count * extent
    flat = relax.ShapeExpr([count])
    rows = [builder.emit(relax.op.reshape(each, flat)) for each in (operand, divisor)]
    function = _function(rows[0].ty).with_attr("op_pattern", OPAQUE)
    variable = builder.add_func(function, "fmod")
    call = builder.emit(relax.call_tir(variable, relax.Tuple(rows), rows[0].ty))
    return builder.emit(relax.op.reshape(call, shape))


def _function(given: Any) -> Any:
    from tvm.script import tirx as T

    dtype = str(given.dtype)
    (extent,) = given.shape
    fixed = extent if isinstance(extent, tirx.IntImm) else None

    def power(step: Any) -> Any:
        """2 to a power, exactly: a product of three, each of which an int32 holds."""
        found: Any = tirx.const(1.0, dtype)
        for before in range(0, _BITS - 1, _PART):
            rest = tirx.const(_BITS - 1 - before, "int32") - tirx.Cast("int32", step)
            places = tirx.max(tirx.min(rest, tirx.const(_PART, "int32")), tirx.const(0, "int32"))
            found = found * tirx.Cast(dtype, tirx.const(1, "int32") << places)
        return found

    def number(value: Any, operand: Any, divisor: Any) -> Any:
        zero, nan = tirx.const(0.0, dtype), tirx.const(float("nan"), dtype)
        known = tirx.all(
            divisor != zero, tirx.abs(operand) <= tirx.max_value(dtype),
            tirx.any(divisor <= zero, divisor >= zero), value < tirx.abs(divisor),
        )  # fmt: skip
        signed = tirx.Select(operand < zero, -value, value)
        return tirx.Select(known, signed, nan)

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def fmod(operand_data: T.handle, divisor_data: T.handle, left_data: T.handle) -> None:
        T.func_attr({"tirx.noalias": True})
        free = T.int64()
        operand = T.match_buffer(operand_data, (free,), dtype)
        divisor = T.match_buffer(divisor_data, (free,), dtype)
        left = T.match_buffer(left_data, (free,), dtype)
        for place in range(free):
            with T.sblock("fmod"):
                i = T.axis.spatial(free, place)
                T.reads(operand[i], divisor[i])
                T.writes(left[i])
                left[i] = T.fabs(operand[i])
                for step in range(_BITS):
                    left[i] = T.Select(
                        left[i] >= T.fabs(divisor[i]) * power(step),
                        left[i] - T.fabs(divisor[i]) * power(step),
                        left[i],
                    )
                left[i] = number(left[i], operand[i], divisor[i])

    return of_length(fmod, fixed)
