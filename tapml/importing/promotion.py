"""Converters of TVM's importer that would give another dtype than PyTorch, or made-up numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx
from tvm import relax

if TYPE_CHECKING:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

Converter = Callable[[fx.Node], Any]

# TVM makes numbers of the first three once, or zeros, when it imports, and resizes without the
# antialias that was asked for. How many the last gives, only the run knows, so no plan has it.
LEFT_OUT: Final = (
    "exponential.default",
    "randn.default",
    "randn_like.default",
    "_upsample_bilinear2d_aa.default",
    "masked_select.default",
)
# Of integers they give floating-point numbers, some at times.
_PROMOTED: Final = (
    *(f"{name}.default" for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp",
        "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh",
        "sqrt", "tan", "tanh",
    )),
    "div.Scalar",
    "div.Tensor",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "where.self",
    # Of integers they give those of 64 bits.
    "cumprod.default",
    "cumsum.default",
    "prod.default",
    "prod.dim_int",
)  # fmt: skip
_WHERE: Final = torch.ops.aten.where.self
_POWERS: Final = (torch.ops.aten.pow.Tensor_Tensor, torch.ops.aten.pow.Scalar)
_POOLS: Final = ("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")


def correct(importer: ExportedProgramImporter, converters: MutableMapping[str, Converter]) -> None:
    """Leave out the converters of `LEFT_OUT`, and change those that do not promote."""
    for name in LEFT_OUT:
        converters.pop(name, None)
    for name in _PROMOTED:
        if name in converters:
            converters[name] = _promoting(importer, converters[name])
    for name in _POOLS:
        converters[name] = _without_places(converters[name])


def _promoting(importer: ExportedProgramImporter, given: Converter) -> Converter:
    def convert(node: fx.Node) -> Any:
        kind = str(node.meta["val"].dtype).removeprefix("torch.")
        if node.target in _POWERS and "int" in kind:
            raise ValueError(
                f"a power of {kind} by a tensor is not imported: multiply, or make it float"
            )
        condition = node.args[0] if node.target is _WHERE else None
        kept = {each: importer.env[each] for each in node.all_input_nodes}
        for each, value in kept.items():
            if _is_whole(value) and str(value.ty.dtype) != kind and each is not condition:
                importer.env[each] = importer.block_builder.emit(relax.op.astype(value, kind))
        try:
            return given(node)
        finally:
            importer.env.update(kept)

    return convert


def _is_whole(value: Any) -> bool:
    dtype = str(getattr(getattr(value, "ty", None), "dtype", ""))
    return dtype.startswith(("int", "uint", "bool"))


def _without_places(given: Converter) -> Converter:
    def convert(node: fx.Node) -> Any:
        for user in node.users:
            if user.target is operator.getitem and user.args[1] == 1 and user.users:
                raise ValueError(
                    "the places of a max-pool's numbers (return_indices) are not imported"
                )
        return given(node)

    return convert
