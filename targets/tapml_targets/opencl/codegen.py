"""PrimFunc to OpenCL C: dlight's schedules, TVM's lowering, TVM's source text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import tvm
from tvm.s_tir import dlight

from tapml_targets.codegen import lowering
from tapml_targets.codegen.constants import with_exact_constants
from tapml_targets.codegen.host_function import for_host
from tapml_targets.codegen.host_program import read_host_function
from tapml_targets.codegen.one_thread import schedule_on_one_thread
from tapml_targets.codegen.options import check_options
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.thread_locals import move_into_threads
from tapml_targets.codegen.tvm_errors import as_runtime_errors
from tapml_targets.errors import CompileError
from tapml_targets.expression import Expression, product
from tapml_targets.installed import compiler_versions
from tapml_targets.library import CodeModule, Kernel, Library, launches
from tapml_targets.limits import Limits
from tapml_targets.opencl.precise_math import precise
from tapml_targets.target import Target

DIALECT: Final = "opencl-c"

# TVM's schedules for OpenCL are made for 256 threads and 16 KiB; a device with more gains little.
_THREADS: Final = 256
_SHARED_BYTES: Final = 16384
_FEATURES: Final = (
    ("float16", re.compile(r"\bhalf\d*\b")),
    ("float64", re.compile(r"\bdouble\d*\b")),
)
# What an option may be; None for numbers and TVM's own names.
_OPTIONS: Final[Mapping[str, tuple[str, ...] | None]] = {
    "compilation": ("cached", "anew"),
    "fast_math": ("0", "1"),
    "math": ("device", "precise"),
    "max_num_threads": None,
    "optimiser": ("on", "off"),
    "schedule": ("dlight", "fallback", "one-thread"),
    "schedule_kind": None,
}


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled.
    target
        Limits that the schedule keeps to, and options:

        - ``schedule``: ``dlight`` (all of dlight's rules, the default), ``fallback`` (its fallback
          rule alone), ``one-thread`` (none: the loops as they were written);
        - ``fast_math``: ``1`` lets the driver's compiler trade accuracy for speed;
        - ``math``: ``precise`` has nothing fused, estimated or traded, whatever ``fast_math`` says;
        - ``optimiser``: ``off`` has the driver's compiler leave the code as it is;
        - ``compilation``: ``anew`` changes nothing but the cache's key;
        - ``schedule_kind``: a TVM target kind to schedule for, default ``opencl``;
        - ``max_num_threads``.

    Returns
    -------
    Library
        One module in the dialect ``opencl-c``, its kernels, and one operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, its host half cannot be a launch plan, or an option is unknown.
    """
    options = check_options(target, _OPTIONS)
    library = _generate(source, target, options)
    return replace(library, modules=tuple(_built_as(m, options) for m in library.modules))


def _generate(source: OperatorSource, target: Target, options: dict[str, str]) -> Library:
    wanted = options.get("schedule", "dlight")
    if wanted == "one-thread":
        source = replace(source, function=for_host(source.function))
    function = move_into_threads(lowering.load_function(source))
    scheduling = _tvm_target(options.get("schedule_kind", "opencl"), target.limits, options)
    generation = _tvm_target("opencl", target.limits, options)
    if wanted != "dlight":
        return _build_plainly(source, function, scheduling, generation, wanted)
    try:
        library = _build(source, _scheduled(function, scheduling, general=True), generation)
        # dlight's GeneralReduction has its thread count written in; the fallback rule asks.
        fits = not _exceeds(library, target.limits)
    except RuntimeError:
        # Some of dlight's rules fail on functions they have already accepted.
        fits = False
    if fits:
        return library
    return _build_plainly(source, function, scheduling, generation, "fallback")


def _build_plainly(
    source: OperatorSource, function: Any, scheduling: Any, generation: Any, schedule: str
) -> Library:
    try:
        if schedule == "one-thread":
            return _build(source, schedule_on_one_thread(function), generation)
        return _build(source, _scheduled(function, scheduling, general=False), generation)
    except RuntimeError as error:
        raise CompileError(lowering.refusal(error)) from error


def _built_as(module: CodeModule, options: Mapping[str, str]) -> CodeModule:
    """The module with the build options, and for precise math the text, that are asked for."""
    if options.get("fast_math") == "1":
        module = replace(module, options=("fast-math",))
    if options.get("math") == "precise":
        module = precise(module)
    if options.get("optimiser") == "off":
        module = replace(module, options=tuple(sorted({*module.options, "no-optimiser"})))
    return module


def _scheduled(function: Any, scheduling: Any, *, general: bool) -> Any:
    return lowering.schedule(function, scheduling, _rules(general=general))


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


def _build(source: OperatorSource, scheduled: Any, generation: Any) -> Library:
    lowered = lowering.lower(scheduled, generation)
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
    with as_runtime_errors("TVM cannot write the kernels"):
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
