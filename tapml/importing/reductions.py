"""Reductions of PyTorch that TVM's importer has no converters for, or wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

from torch import fx
from tvm import relax, tirx

if TYPE_CHECKING:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

Converter = Callable[[fx.Node], Any]
Axes = Sequence[int] | None


def converters(importer: ExportedProgramImporter) -> dict[str, Converter]:
    """The converters by the name of the overload."""

    def emit(value: Any) -> Any:
        return importer.block_builder.emit(value)

    def arguments(node: fx.Node, *defaults: Any) -> tuple[Any, ...]:
        return _arguments(importer, node, *defaults)

    def extreme(reduce: Callable[..., Any]) -> Converter:
        def convert(node: fx.Node) -> Any:
            operand, axes, keeps = arguments(node, None, False)
            if str(operand.ty.dtype) != "bool":
                return emit(reduce(operand, axes, keepdims=keeps))
            found = emit(reduce(emit(relax.op.astype(operand, "int8")), axes, keepdims=keeps))
            return emit(relax.op.astype(found, "bool"))

        return convert

    def extremes(node: fx.Node) -> Any:
        operand = importer.env[node.args[0]]
        axis, keeps = node.kwargs.get("dim"), node.kwargs.get("keepdim", False)
        axes = None if axis is None else [axis]
        both = (reduce(operand, axes, keepdims=keeps) for reduce in (relax.op.min, relax.op.max))
        return emit(relax.Tuple([emit(each) for each in both]))

    def with_place(reduce: Callable[..., Any], find: Callable[..., Any]) -> Converter:
        """An extreme and its first place; TVM sorts for the largest."""
        value = extreme(reduce)

        def convert(node: fx.Node) -> Any:
            operand, axes, keeps = arguments(node, None, False)
            if str(operand.ty.dtype) in {"bool", "uint8"}:
                # A place is looked for from the least number on, which no zero of uint8 exceeds.
                operand = emit(relax.op.astype(operand, "int32"))
            place = emit(find(operand, axes[0], keepdims=keeps))
            return emit(relax.Tuple([value(node), place]))

        return convert

    def truth(reduce: Callable[..., Any]) -> Converter:
        """Whether any, or all: a maximum, or a minimum, of bytes, as TVM has none of predicates."""

        def convert(node: fx.Node) -> Any:
            operand, axes, keeps = arguments(node, None, False)
            true = emit(relax.op.astype(_truths(importer, operand), "int8"))
            found = emit(reduce(true, axes, keepdims=keeps))
            return emit(relax.op.astype(found, "bool"))

        return convert

    def log_sum(node: fx.Node) -> Any:
        operand, axes, keeps = arguments(node, None, False)
        largest = emit(relax.op.max(operand, axes, keepdims=True))
        # An infinity less itself is no number.
        infinite = emit(relax.op.isinf(largest))
        largest = emit(relax.op.where(infinite, _zero(operand), largest))
        powers = emit(relax.op.exp(emit(relax.op.subtract(operand, largest))))
        total = emit(relax.op.log(emit(relax.op.sum(powers, axes, keepdims=True))))
        result = emit(relax.op.add(total, largest))
        return result if keeps else emit(relax.op.squeeze(result, axes))

    def sum_of_numbers(node: fx.Node) -> Any:
        operand, axes, keeps = arguments(node, None, False)
        missing = emit(relax.op.isnan(operand))
        numbers = emit(relax.op.where(missing, _zero(operand), operand))
        return emit(relax.op.sum(numbers, axes, keepdims=keeps))

    return {
        **_counts(importer),
        "amax.default": extreme(relax.op.max),
        "amin.default": extreme(relax.op.min),
        "aminmax.default": extremes,
        "max.default": extreme(relax.op.max),
        "min.default": extreme(relax.op.min),
        "max.dim": with_place(relax.op.max, relax.op.argmax),
        "min.dim": with_place(relax.op.min, relax.op.argmin),
        "prod.dim_int": extreme(relax.op.prod),
        "any.default": truth(relax.op.max),
        "any.dim": truth(relax.op.max),
        "any.dims": truth(relax.op.max),
        "all.default": truth(relax.op.min),
        "all.dim": truth(relax.op.min),
        "all.dims": truth(relax.op.min),
        "logsumexp.default": log_sum,
        "nansum.default": sum_of_numbers,
    }


def _arguments(importer: ExportedProgramImporter, node: fx.Node, *defaults: Any) -> tuple[Any, ...]:
    """The operand, its axes (None for all) and further arguments, `defaults` where left out."""
    given: list[Any] = list(importer.retrieve_args(node))
    operand, axes, *rest = (*given, *defaults[max(len(given) - 1, 0) :])
    if isinstance(axes, int):
        axes = [axes]
    return (operand, list(axes) if axes else None, *rest)


def _truths(importer: ExportedProgramImporter, operand: Any) -> Any:
    if str(operand.ty.dtype) == "bool":
        return operand
    return importer.block_builder.emit(relax.op.not_equal(operand, _zero(operand)))


def _counts(importer: ExportedProgramImporter) -> dict[str, Converter]:
    """How many are true: in 32 bits, with bounds that a kernel without 64 bits can rely on."""

    def counted(truths: Any, axes: Axes, *, keeps: bool) -> Any:
        emit = importer.block_builder.emit
        rank = truths.ty.ndim
        extents = [truths.ty.shape[axis] for axis in range(rank) if _is_in(axis, axes, rank)]
        known = all(isinstance(each, tirx.IntImm) for each in extents)
        most = min(prod(map(int, extents)), _MOST) if known else _MOST
        found = emit(relax.op.sum(emit(relax.op.astype(truths, "int32")), axes, keepdims=keeps))
        return emit(relax.op.astype(emit(relax.op.clip(found, 0, most)), "int64"))

    def count(node: fx.Node) -> Any:
        operand, axes = _arguments(importer, node, None)
        return counted(_truths(importer, operand), axes, keeps=False)

    def sum_of(given: Converter) -> Converter:
        def convert(node: fx.Node) -> Any:
            operand, axes, keeps = _arguments(importer, node, None, False)
            if str(operand.ty.dtype) != "bool" or node.kwargs.get("dtype") is not None:
                return given(node)
            return counted(operand, axes, keeps=keeps)

        return convert

    sums = ("sum.default", "sum.dim_IntList")
    return {
        "count_nonzero.default": count,
        "count_nonzero.dim_IntList": count,
        **{name: sum_of(importer.convert_map[name]) for name in sums},
    }


# Nothing that a device holds has more elements.
_MOST: Final = (1 << 31) - 1


def _is_in(axis: int, axes: Axes, rank: int) -> bool:
    return axes is None or axis in axes or axis - rank in axes


_FLOATS: Final = ("float", "bfloat")


def _zero(operand: Any) -> Any:
    dtype = str(operand.ty.dtype)
    return relax.const(0.0 if dtype.startswith(_FLOATS) else 0, dtype)
