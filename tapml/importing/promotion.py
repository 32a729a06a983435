"""Converters of TVM's importer that would give another dtype than PyTorch, or made-up numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx
from tvm import relax, tirx

if TYPE_CHECKING:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

Converter = Callable[[fx.Node], Any]

# TVM makes numbers of the first four once, or zeros, or none, when it imports, and resizes extents
# of any length without the antialias that was asked for. How many the last gives, only the run
# knows, so no plan has it.
LEFT_OUT: Final = (
    "bernoulli.p",
    "exponential.default",
    "randn.default",
    "randn_like.default",
    "_upsample_bilinear2d_aa.default",
    "masked_select.default",
)
# Of integers they give floating-point numbers, some at times; of two dtypes the wider.
_PROMOTED: Final = (
    *(f"{name}.default" for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp",
        "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh",
        "sqrt", "tan", "tanh",
    )),
    "add.Scalar",
    "add.Tensor",
    "div.Scalar",
    "div.Tensor",
    "cat.default",
    "clamp.default",
    "clamp.Tensor",
    "maximum.default",
    "minimum.default",
    "mul.Scalar",
    "mul.Tensor",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "rsub.Scalar",
    "sub.Scalar",
    "sub.Tensor",
    "where.self",
    # Of integers they give those of 64 bits.
    "cumprod.default",
    "cumsum.default",
    "prod.default",
    "prod.dim_int",
)  # fmt: skip
_COMPARED: Final = tuple(
    f"{name}.{kind}"
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder")
    for kind in ("Tensor", "Scalar")
)
_WHERE: Final = torch.ops.aten.where.self
# TVM gives what they are given, whatever is asked for.
_DROPOUTS: Final = ("dropout.default", "dropout_.default", "native_dropout.default")
_OTHER_RESULTS: Final = {
    **dict.fromkeys(
        ("max_pool2d_with_indices.default", "max_pool3d_with_indices.default"),
        "the places of a max-pool's numbers (return_indices)",
    ),
    **dict.fromkeys(
        ("native_layer_norm.default", "native_group_norm.default"),
        "the means and deviations of a norm, which it gives beside its rows,",
    ),
}


def correct(importer: ExportedProgramImporter, converters: MutableMapping[str, Converter]) -> None:
    """Leave out the converters of `LEFT_OUT`, and change those that do not promote."""
    for name in LEFT_OUT:
        converters.pop(name, None)
    for name in _PROMOTED:
        if name in converters:
            converters[name] = _promoting(importer, converters[name])
    for name in _COMPARED:
        if name in converters:
            converters[name] = _as_numbers(importer, converters[name])
    for name in _DROPOUTS:
        converters[name] = _never_at_random(converters[name])
    converters["bucketize.Tensor"] = _not_numbers_last(importer, converters["bucketize.Tensor"])
    for name, others in _OTHER_RESULTS.items():
        converters[name] = _first_alone(converters[name], others)


def _promoting(importer: ExportedProgramImporter, given: Converter) -> Converter:
    def convert(node: fx.Node) -> Any:
        kind = str(node.meta["val"].dtype).removeprefix("torch.")
        condition = node.args[0] if node.target is _WHERE else None
        kept = {each: importer.env[each] for each in node.all_input_nodes}
        for each, value in kept.items():
            if _is_tensor(value) and str(value.ty.dtype) != kind and each is not condition:
                importer.env[each] = importer.block_builder.emit(relax.op.astype(value, kind))
        try:
            return given(node)
        finally:
            importer.env.update(kept)

    return convert


def _as_numbers(importer: ExportedProgramImporter, given: Converter) -> Converter:
    """Integers beside a number that is no tensor and not whole, which TVM would cut."""

    def convert(node: fx.Node) -> Any:
        kept = {each: importer.env[each] for each in node.all_input_nodes}
        if any(isinstance(each, float) for each in node.args):
            for each, value in kept.items():
                if _is_tensor(value) and "float" not in str(value.ty.dtype):
                    number = relax.op.astype(value, "float32")
                    importer.env[each] = importer.block_builder.emit(number)
        try:
            return given(node)
        finally:
            importer.env.update(kept)

    return convert


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def _not_numbers_last(importer: ExportedProgramImporter, given: Converter) -> Converter:
    """TVM finds the place 0 for what is not a number."""

    def convert(node: fx.Node) -> Any:
        operand, ends = (importer.env[each] for each in node.args[:2])
        places, emit = given(node), importer.block_builder.emit
        (count,) = ends.ty.shape
        if "float" not in str(operand.ty.dtype) or not isinstance(count, tirx.IntImm):
            return places
        last = relax.const(int(count), places.ty.dtype)
        return emit(relax.op.where(emit(relax.op.isnan(operand)), last, places))

    return convert


def _never_at_random(given: Converter) -> Converter:
    def convert(node: fx.Node) -> Any:
        _, share, trains = node.args
        if trains and share:
            raise ValueError("it drops numbers at random: import the module in evaluation mode")
        return given(node)

    return convert


def _first_alone(given: Converter, others: str) -> Converter:
    """TVM has the first result of these operations alone."""

    def convert(node: fx.Node) -> Any:
        for user in node.users:
            if user.target is operator.getitem and user.args[1] != 0 and user.users:
                raise ValueError(f"{others} are not imported")
        return given(node)

    return convert
