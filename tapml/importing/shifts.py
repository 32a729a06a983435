"""Shifts of integers, which TVM's importer has no converters for.

PyTorch defines shifts by the width of the type and more, and by less than nothing: no bit is left,
but the sign of a right shift of a signed number. C and shading languages define neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch import fx
from tvm import relax

if TYPE_CHECKING:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

_LEFT: Final = ("__lshift__.Scalar", "__lshift__.Tensor", "bitwise_left_shift.Tensor",
                "bitwise_left_shift.Tensor_Scalar")  # fmt: skip
_RIGHT: Final = ("__rshift__.Scalar", "__rshift__.Tensor", "bitwise_right_shift.Tensor",
                 "bitwise_right_shift.Tensor_Scalar")  # fmt: skip


def converters(importer: ExportedProgramImporter) -> dict[str, Callable[[fx.Node], Any]]:
    """The converters by the name of the overload."""

    def convert(node: fx.Node, *, left: bool) -> Any:
        value, amount = importer.retrieve_args(node)
        kind = str(node.meta["val"].dtype).removeprefix("torch.")
        emit = importer.block_builder.emit
        width, signed = np.iinfo(kind).bits, np.iinfo(kind).min < 0
        value = _as(value, kind, emit)
        if isinstance(amount, int):
            if not 0 <= amount < width and (left or not signed):
                return emit(relax.op.zeros_like(value))
            within = relax.const(amount if 0 <= amount < width else width - 1, kind)
            return emit((relax.op.left_shift if left else relax.op.right_shift)(value, within))
        amount = _as(amount, kind, emit)
        none, most = relax.const(0, kind), relax.const(width - 1, kind)
        inside = emit(
            relax.op.logical_and(
                relax.op.greater_equal(amount, none), relax.op.less_equal(amount, most)
            )
        )
        within = emit(relax.op.where(inside, amount, most))
        shift = relax.op.left_shift if left else relax.op.right_shift
        shifted = emit(shift(value, within))
        if signed and not left:
            return shifted
        return emit(relax.op.where(inside, shifted, none))

    return {
        **{name: lambda node: convert(node, left=True) for name in _LEFT},
        **{name: lambda node: convert(node, left=False) for name in _RIGHT},
    }


def _as(value: Any, kind: str, emit: Callable[[Any], Any]) -> Any:
    return value if str(value.ty.dtype) == kind else emit(relax.op.astype(value, kind))
