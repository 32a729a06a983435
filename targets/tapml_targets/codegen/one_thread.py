"""The simplest schedule: everything in one thread, in the order in which it was written."""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tapml_targets.codegen.lowering import ENTRY_NAME
from tapml_targets.errors import CompileError

_ROOT: Final = "root"
_LAUNCH: Final = "thread_extent"


def schedule_on_one_thread(function: Any) -> Any:
    """Bind each loop nest of a PrimFunc to one block of one thread.

    Nothing is tiled, shared or moved, so a result that is still wrong is not the schedule's fault.
    It is slow and used only for diagnosis.

    Returns
    -------
    IRModule
        With the scheduled function as its only one, named ``main``.

    Raises
    ------
    CompileError
        If the function already binds threads, as TVM's sorts and scans for GPUs do.
    """
    if _has_threads(function):
        raise CompileError("the function binds threads itself: it has no schedule to remove")
    schedule = s_tir.Schedule(tvm.IRModule({ENTRY_NAME: _with_root(function)}))
    for block in schedule.get_child_blocks(schedule.get_sblock(_ROOT, func_name=ENTRY_NAME)):
        outermost = (*schedule.get_loops(block), block)[0]
        for axis in ("blockIdx.x", "threadIdx.x"):
            schedule.bind(schedule.add_unit_loop(outermost), axis)
    return schedule.mod


def _with_root(function: Any) -> Any:
    """`function` with a root block, which TVM omits around a single block of loops."""
    body = function.body
    if not isinstance(body, SBlockRealize) or body.block.name_hint == _ROOT:
        return function
    return function.with_body(SBlockRealize([], True, SBlock([], [], [], _ROOT, body)))


def _has_threads(function: Any) -> bool:
    found = False

    def loop(statement: Any) -> None:
        nonlocal found
        found = found or statement.kind == tirx.ForKind.THREAD_BINDING

    def attribute(statement: Any) -> None:
        nonlocal found
        found = found or statement.attr_key == _LAUNCH

    tvm_ffi.structural_walk(function.body, [(tirx.For, loop), (tirx.AttrStmt, attribute)])
    return found
