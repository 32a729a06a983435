"""cumsum and cumprod: a kernel written by hand, chosen by what the operator means.

What TVM writes for GPUs is wrong on drivers that this project knows: a step reads what a neighbour
writes, with no barrier between. In its form for processors a scan is a loop over rows around a loop
over a row's elements, of which axis and direction can be read off.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import sym, tirx

from tapml_targets.codegen.handwritten import Build, launch, library_of, threads_for
from tapml_targets.codegen.scan_kernel import TOTALS, WIDE, scan_rows
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError
from tapml_targets.expression import product
from tapml_targets.library import Library
from tapml_targets.limits import Limits

_NAMES: Final = {
    "cumsum_generic": ("sum", operator.add, tirx.Add),
    "cumprod_generic": ("product", operator.mul, tirx.Mul),
}
# Rows no longer than this leave most threads of a large workgroup with nothing to do.
_SHORT: Final = 256
_FEW_THREADS: Final = 32
# Stands for every extent that is not known while the axis is looked for.
_SOME_EXTENT: Final = 1000


@dataclass(frozen=True)
class _Scan:
    """What an operator means: scan `axis` of its only input, or what comes before each element.

    `combine` is the operation, and `identity` changes nothing with it.
    """

    what: str
    combine: Callable[[Any, Any], Any]
    identity: int
    axis: int
    exclusive: bool


def scan_library(
    source: OperatorSource, function: Any, limits: Limits, build: Build
) -> Library | None:
    """The Library of a scan; None where `function` is none.

    Raises
    ------
    CompileError
        If it adds up elements of a type that there is no kernel for.
    """
    scan = _meaning(function)
    if scan is None:
        return None
    given, scanned = source.parameters
    known = [each for each in TOTALS if each != WIDE or each in limits.features]
    if given.dtype != scanned.dtype or given.dtype not in known:
        raise CompileError(
            f"a running {scan.what} of {given.dtype} in {scanned.dtype} is not among those that "
            f"there are kernels for: {', '.join(known)}; keep the operator on the source"
        )
    length = given.shape[scan.axis]
    inner = product(given.shape[scan.axis + 1 :])
    rows = product((*given.shape[: scan.axis], inner))
    threads = threads_for(limits)
    if isinstance(length, int) and length <= _SHORT:
        threads = min(threads, _FEW_THREADS)
    kernel = scan_rows(given.dtype, threads, scan.combine, scan.identity, exclusive=scan.exclusive)
    run = launch("scan_rows", (given.name, scanned.name), length, inner, rows)
    return library_of(source, {"scan_rows": kernel}, (run,), (), build)


def _meaning(function: Any) -> _Scan | None:
    block: Any = getattr(function.body, "block", None)
    name = str(getattr(block, "name_hint", ""))
    if name not in _NAMES:
        return None
    what, combine, node = _NAMES[name]
    rows = block.body
    first, rest = rows.body.seq if isinstance(rows.body, tirx.SeqStmt) else (None, None)
    if not isinstance(first, tirx.BufferStore) or not isinstance(rest, tirx.For):
        raise CompileError(f"{name} is not written as this tapml knows it: another version of TVM?")
    step = rest.body
    if not isinstance(step, tirx.BufferStore) or not isinstance(step.value, node):
        raise CompileError(f"{name} is not written as this tapml knows it: another version of TVM?")
    begins_with_one = isinstance(first.value, tirx.FloatImm | tirx.IntImm)
    axis = _moved_axis(step.indices, rows.loop_var, rest.loop_var)
    return _Scan(what, combine, int(node is tirx.Mul), axis, begins_with_one)


def _moved_axis(indices: Sequence[Any], row: Any, place: Any) -> int:
    """The axis along which the second element of the first row lies."""
    analyzer = sym.Analyzer()

    def at(variable: Any) -> Any:
        if tirx.buffer.is_buffer_var(variable) or not tvm.ir.is_prim_var(variable):
            return variable
        known = 0 if variable.same_as(row) or variable.same_as(place) else _SOME_EXTENT
        return tirx.IntImm(str(variable.ty), known)

    found = [
        int(analyzer.simplify(tvm_ffi.structural_map(index, [(tvm.ir.Var, at)])).value)
        for index in indices
    ]
    moved = [axis for axis, index in enumerate(found) if index]
    if len(moved) != 1 or found[moved[0]] != 1:
        raise CompileError(f"a scan's second element lies at {found}: which axis is that?")
    return moved[0]
