"""PrimFunc to OpenCL C: dlight's schedules, TVM's lowering, TVM's source text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import tvm
from tvm.s_tir import dlight

from tapml_targets.codegen import lowering
from tapml_targets.codegen.constants import with_exact_constants
from tapml_targets.codegen.host_program import read_host_function
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.thread_locals import move_into_threads
from tapml_targets.errors import CompileError
from tapml_targets.expression import Expression, product
from tapml_targets.installed import compiler_versions
from tapml_targets.library import CodeModule, Kernel, Library, launches
from tapml_targets.limits import Limits
from tapml_targets.target import Target

DIALECT: Final = "opencl-c"

# TVM's schedules for OpenCL are made for 256 threads and 16 KiB; a device with more gains little.
_THREADS: Final = 256
_SHARED_BYTES: Final = 16384
_FEATURES: Final = (
    ("float16", re.compile(r"\bhalf\d*\b")),
    ("float64", re.compile(r"\bdouble\d*\b")),
)


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled.
    target
        Limits that the schedule keeps to, and the options ``schedule_kind`` (a TVM target kind to
        schedule for, default ``opencl``) and ``max_num_threads``.

    Returns
    -------
    Library
        One module in the dialect ``opencl-c``, its kernels, and one operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, or its host half cannot be a launch plan.
    """
    options = dict(target.options)
    function = move_into_threads(lowering.load_function(source))
    scheduling = _tvm_target(options.get("schedule_kind", "opencl"), target.limits, options)
    generation = _tvm_target("opencl", target.limits, options)
    try:
        library = _build(source, function, scheduling, generation, _rules(general=True))
        # dlight's GeneralReduction has its thread count written in; the fallback rule asks.
        fits = not _exceeds(library, target.limits)
    except RuntimeError:
        # Some of dlight's rules fail on functions they have already accepted.
        fits = False
    if fits:
        return library
    try:
        return _build(source, function, scheduling, generation, _rules(general=False))
    except RuntimeError as error:
        raise CompileError(lowering.refusal(error)) from error


def _rules(*, general: bool) -> Sequence[Any]:
    gpu = dlight.gpu
    first = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction())
    return (*first, gpu.GeneralReduction(), gpu.Fallback()) if general else (gpu.Fallback(),)


def _tvm_target(kind: str, limits: Limits, options: dict[str, str]) -> Any:
    threads = int(options.get("max_num_threads", _THREADS))
    if limits.max_threads_per_block:
        threads = min(threads, limits.max_threads_per_block)
    shared = min(limits.max_shared_memory_bytes or _SHARED_BYTES, _SHARED_BYTES)
    attributes: dict[str, object] = {"kind": kind, "max_num_threads": threads}
    if kind == "opencl":
        attributes |= {"max_threads_per_block": threads, "max_shared_memory_per_block": shared}
    return tvm.target.Target(attributes).with_host(tvm.target.Target("llvm"))


def _build(
    source: OperatorSource, function: Any, scheduling: Any, generation: Any, rules: Sequence[Any]
) -> Library:
    lowered = lowering.lower(lowering.schedule(function, scheduling, rules), generation)
    program = read_host_function(lowered.host, source)
    text = _source_text(lowered)
    features = tuple(name for name, pattern in _FEATURES if pattern.search(text))
    shared = lowering.shared_memory_bytes(lowered.device)
    kernels = {
        launch.kernel: Kernel(
            name=launch.kernel,
            symbol=launch.kernel,
            module=0,
            threads_per_block=_threads(launch.block),
            shared_memory_bytes=shared.get(launch.kernel, 0),
            # A module is built whole, so each of its kernels needs what any of them uses.
            features=features,
        )
        for launch in launches(program.statements)
    }
    return Library(
        target="opencl",
        modules=(CodeModule(DIALECT, text.encode()),),
        kernels=kernels,
        operators={source.name: program},
        metadata={"compiler": compiler_versions()},
    )


def _threads(block: tuple[Expression, Expression, Expression]) -> int:
    threads = product(block)
    return threads if isinstance(threads, int) else 0


def _source_text(lowered: lowering.Lowered) -> str:
    build = tvm.get_global_func("target.build.opencl")
    printed = str(build(lowered.device, lowered.target).inspect_source("cl"))
    return with_exact_constants(printed, lowered.device)


def _exceeds(library: Library, limits: Limits) -> bool:
    bounds = (limits.max_threads_per_block, limits.max_shared_memory_bytes)
    return any(
        need > bound > 0
        for kernel in library.kernels.values()
        for need, bound in zip(
            (kernel.threads_per_block, kernel.shared_memory_bytes), bounds, strict=True
        )
    )
