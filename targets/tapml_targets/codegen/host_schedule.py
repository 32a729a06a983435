"""The schedule of the CPU reference: correct first, with simple improvements."""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tapml_targets.codegen.tvm_errors import as_runtime_errors

_REDUCTION: Final = 2  # tirx.IterVar.CommReduce
# x86 and Arm.
_HALF_ARITHMETIC: Final = ("avx512fp16", "fullfp16")


def host_target(*, reassociates: bool = True) -> Any:
    """TVM's target for this machine's CPU; see :func:`cpu_target`."""
    processor = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    return cpu_target(processor, reassociates=reassociates)


def cpu_target(processor: str = "", *, reassociates: bool = True) -> Any:
    """TVM's target for a CPU; without `processor` code runs on every CPU of this architecture.

    Sums may be reassociated and fused with products: without that LLVM computes every dot product
    one element at a time, twenty times slower. NaN, infinity and signed zeros keep their meaning.
    """
    attributes: dict[str, object] = {"kind": "llvm", "fast-math-contract": True}
    if reassociates:
        attributes["fast-math-reassoc"] = True
    if processor:
        attributes["mcpu"] = processor
    return tvm.target.Target(attributes)


def is_slow_to_reassociate(function: Any, target: Any) -> bool:
    """Whether a function sums float16 on a processor without float16 arithmetic.

    There each addition is one in float32. LLVM 22 takes 30 s (AVX-512) to minutes (AVX2) for a sum
    of 1,536 halves that it may reassociate, and 0.2 s for one that it may not.
    """
    has_feature = tvm.get_global_func("target.llvm_cpu_has_feature")
    if any(has_feature(feature, target) for feature in _HALF_ARITHMETIC):
        return False
    stores: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, stores.append))
    return any(str(s.buffer.dtype) == "float16" and _reads(s.value, s.buffer) for s in stores)


def _reads(value: Any, buffer: Any) -> bool:
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, (tvm.ir.TensorLoad, loads.append))
    return any(load.source.same_as(buffer) for load in loads)


def schedule_for_host(function: Any) -> Any:
    """Move initialisation out of reduction loops and make the innermost loop contiguous.

    A function that TVM cannot schedule is returned unchanged.
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
    """Whether an operand is contiguous along the last output axis instead of the reduction."""
    if len(reductions) != 1 or reductions[0] != len(statement.iter_vars) - 1:
        return False
    if reductions[0] == 0:
        return False
    column = statement.iter_vars[reductions[0] - 1].var
    innermost = [region.region[-1].min for region in statement.reads if region.region]
    return any(isinstance(index, tirx.Var) and index.same_as(column) for index in innermost)
