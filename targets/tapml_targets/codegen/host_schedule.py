"""The schedule of the CPU reference: correct above all, and not naive where that is simple."""

from __future__ import annotations

from typing import Any, Final

import tvm
from tvm import s_tir, tirx

from tapml_targets.codegen.tvm_errors import as_runtime_errors

_REDUCTION: Final = 2  # tirx.IterVar.CommReduce


def host_target() -> Any:
    """TVM's target for this machine's CPU.

    Sums may be reassociated and fused with products: without that LLVM computes every dot product
    one element at a time, twenty times slower. NaN, infinity and signed zeros keep their meaning.
    """
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target(
        {"kind": "llvm", "mcpu": cpu, "fast-math-reassoc": True, "fast-math-contract": True}
    )


def schedule_for_host(function: Any) -> Any:
    """Take the initialisation out of reduction loops and let the innermost loop run contiguously.

    A function that TVM's schedules do not understand is returned as it came.
    """
    try:
        with as_runtime_errors("no schedule"):
            schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
            blocks = list(schedule.get_child_blocks(schedule.get_sblock("root")))
    except RuntimeError:
        return function
    for block in blocks:
        _improve(schedule, block)
    return schedule.mod["main"]


def _improve(schedule: Any, block: Any) -> None:
    statement = schedule.get(block)
    loops = list(schedule.get_loops(block))
    reductions = [
        position
        for position, axis in enumerate(statement.iter_vars)
        if int(axis.iter_type) == _REDUCTION
    ]
    if not reductions or len(loops) != len(statement.iter_vars):
        return
    try:
        with as_runtime_errors("no better schedule"):
            schedule.decompose_reduction(block, loops[reductions[0]])
            if _columns_are_contiguous(statement, reductions):
                last = schedule.get_loops(block)
                schedule.reorder(last[reductions[0]], last[reductions[0] - 1])
    except RuntimeError:
        return


def _columns_are_contiguous(statement: Any, reductions: list[int]) -> bool:
    """Whether walking the last output axis, not the reduction, walks an operand's memory."""
    if len(reductions) != 1 or reductions[0] != len(statement.iter_vars) - 1:
        return False
    if reductions[0] == 0:
        return False
    column = statement.iter_vars[reductions[0] - 1].var
    innermost = [region.region[-1].min for region in statement.reads if region.region]
    return any(isinstance(index, tirx.Var) and index.same_as(column) for index in innermost)
