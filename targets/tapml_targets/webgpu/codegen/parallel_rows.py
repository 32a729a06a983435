"""Functions written as one parallel loop around serial ones: a thread for each iteration.

TVM writes scans for processors like that, in a block that no schedule looks into. What it writes
for GPUs in their place is wrong on drivers that this project knows (a step reads what its neighbour
writes, with no barrier between), or has a layout that WGSL cannot launch.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize

from tapml_targets.codegen.lowering import ENTRY_NAME

_THREADS: Final = 64


def schedule_rows(function: Any, max_threads: int) -> Any | None:
    """Give each iteration of the outer parallel loop a thread.

    Returns
    -------
    IRModule or None
        With the scheduled function as its only one, named ``main``; None where `function` is not
        of that form.
    """
    loop = _parallel_loop(function)
    if loop is None:
        return None
    count = min(_THREADS, max_threads)
    kind = str(loop.loop_var.ty)
    threads = tirx.IntImm(kind, count)
    block, thread = (tirx.Var(name, kind) for name in ("block", "thread"))
    body = tirx.SeqStmt([tirx.Bind(loop.loop_var, block * threads + thread), _guarded(loop)])
    blocks = tirx.FloorDiv(loop.extent + (threads - 1), threads)
    body = _bound(thread, "threadIdx.x", threads, body)
    body = _bound(block, "blockIdx.x", blocks, body)
    return tvm.IRModule({ENTRY_NAME: function.with_body(body)})


def _guarded(loop: Any) -> Any:
    return tirx.IfThenElse(tirx.LT(loop.loop_var, loop.extent), loop.body, None)


def _bound(variable: Any, tag: str, extent: Any, body: Any) -> Any:
    kind = str(variable.ty)
    domain = tvm.ir.Range.from_min_extent(tirx.IntImm(kind, 0), extent)
    axis = tirx.IterVar(domain, variable, 1, tag)
    return tirx.AttrStmt(axis, "thread_extent", extent, body)


def _parallel_loop(function: Any) -> Any:
    body = function.body
    if isinstance(body, SBlockRealize):
        body = body.block.body
    from_zero = isinstance(body, tirx.For) and int(getattr(body.min, "value", 1)) == 0
    parallel = from_zero and body.kind == tirx.ForKind.PARALLEL
    return body if parallel else None
