"""The bits of numbers as numbers of another dtype: ``x.view(dtype)``.

Of dtypes of unlike sizes the last axis is as much longer or shorter, and the lower bits come first,
as in the memory of processors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx
from tvm import te, tirx

if TYPE_CHECKING:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

NAME: Final = "view.dtype"


def converter(importer: ExportedProgramImporter) -> Callable[[fx.Node], Any]:
    """The converter of such views.

    It raises ValueError for dtypes that TVM has not, such as those of complex numbers.
    """

    def convert(node: fx.Node) -> Any:
        operand, _ = importer.retrieve_args(node)
        given = str(operand.ty.dtype)
        wanted = str(node.meta["val"].dtype).removeprefix("torch.")
        if given == wanted:
            return operand
        for each in (given, wanted):
            if not each.startswith(("int", "uint", "float", "bfloat", "bool")):
                raise ValueError(f"a view of {given} as {wanted} is not imported")
        return importer.block_builder.emit_te(_viewed, operand, wanted)

    return convert


def _bits(dtype: str) -> int:
    return 8 * torch.empty((), dtype=getattr(torch, dtype)).itemsize


def _viewed(tensor: Any, wanted: str) -> Any:
    given = str(tensor.dtype)
    before, behind = _bits(given), _bits(wanted)
    if before == behind:
        return te.compute(tensor.shape, lambda *at: _read(tensor(*at), given, wanted), "bits")
    *rows, count = tensor.shape
    word = f"int{max(before, behind, 32)}"

    def part(*place: Any) -> Any:
        """One of the narrow numbers in a wide one."""
        *row, at = place
        times = before // behind
        whole = _read(tensor(*row, tirx.floordiv(at, times)), given, f"int{before}")
        shift = (tirx.floormod(at, times) * behind).astype(word)
        return _read((whole.astype(word) >> shift).astype(f"int{behind}"), f"int{behind}", wanted)

    def joined(*place: Any) -> Any:
        """The wide number of some narrow ones."""
        *row, at = place
        times = behind // before
        found: Any = None
        for each in range(times):
            own = _read(tensor(*row, at * times + each), given, f"int{before}").astype(word)
            if each < times - 1:
                own = own & tirx.const((1 << before) - 1, word)
            own = own << tirx.const(before * each, word)
            found = own if found is None else found | own
        return _read(found.astype(f"int{behind}"), f"int{behind}", wanted)

    if before > behind:
        return te.compute((*rows, count * (before // behind)), part, "bits")
    return te.compute((*rows, tirx.floordiv(count, behind // before)), joined, "bits")


def _read(value: Any, given: str, wanted: str) -> Any:
    """The bits of a number as one of another dtype of the same size."""
    if given == wanted:
        return value
    if given == "bool":
        return _read(value.astype("int8"), "int8", wanted)
    if wanted == "bool":
        return _read(value, given, "int8") != tirx.const(0, "int8")
    return tirx.reinterpret(wanted, value)
