"""``index_put`` by fewer indices than the tensor has axes: TVM's importer wants one for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch import fx
from tvm import relax

if TYPE_CHECKING:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

Converter = Callable[[fx.Node], Any]
NAME: Final = "index_put.default"


def converter(
    importer: ExportedProgramImporter,
    given: Converter,
    from_start: Callable[[Any, Any], Any],
) -> Converter:
    """A converter for indices of the first axes; `given` converts all others.

    `from_start` adds an extent to the indices that count from the end.
    """

    def convert(node: fx.Node) -> Any:
        data, indices, values, *rest = importer.retrieve_args(node)
        known = [each for each in indices if each is not None]
        if any(str(each.ty.dtype) == "bool" for each in known):
            raise ValueError("values put by a mask beside other indices: give the mask's places")
        if (
            len(known) != len(indices)
            or len(known) > data.ty.ndim
            or any(not str(each.ty.dtype).startswith("int") for each in known)
        ):
            return given(node)
        emit = importer.block_builder.emit
        accumulates = bool(rest[0]) if rest else bool(node.kwargs.get("accumulate", False))
        longest = max(known, key=lambda each: each.ty.ndim).ty.shape
        # A place fits 32 bits, and what is computed with 64 does not run on every platform.
        places = [
            emit(
                relax.op.broadcast_to(
                    from_start(emit(relax.op.astype(each, "int32")), data.ty.shape[axis]), longest
                )
            )
            for axis, each in enumerate(known)
        ]
        stacked = emit(relax.op.stack(places, axis=-1))
        rows = [*longest, *list(data.ty.shape)[len(known) :]]
        updates = emit(relax.op.broadcast_to(values, relax.ShapeExpr(rows)))
        reduction = "add" if accumulates else "update"
        return emit(relax.op.scatter_nd(data, stacked, updates, reduction))

    return convert
