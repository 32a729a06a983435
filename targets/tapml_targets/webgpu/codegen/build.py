"""PrimFunc to WGSL: dlight's schedules, TVM's lowering, TVM's text, made right for WebGPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import tvm
from tvm.s_tir import dlight

from tapml_targets.codegen import lowering
from tapml_targets.codegen.constants import with_exact_constants
from tapml_targets.codegen.host_function import for_host
from tapml_targets.codegen.host_program import read_host_function
from tapml_targets.codegen.one_thread import schedule_on_one_thread
from tapml_targets.codegen.options import check_options
from tapml_targets.codegen.segmented import in_segments
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.tvm_errors import as_runtime_errors
from tapml_targets.errors import CompileError
from tapml_targets.expression import product
from tapml_targets.installed import compiler_versions
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    ScalarArgument,
    launches,
    with_launches,
)
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tapml_targets.webgpu.codegen.mathematics import spell_out
from tapml_targets.webgpu.codegen.moves import spell_moves
from tapml_targets.webgpu.codegen.narrow_types import narrow_types
from tapml_targets.webgpu.codegen.proof import prove_narrow
from tapml_targets.webgpu.codegen.scanning import scan_library
from tapml_targets.webgpu.codegen.sorting import sort_library
from tapml_targets.webgpu.codegen.storage import store_in_words
from tapml_targets.webgpu.codegen.symbol_bounds import MOST_BYTES, LaunchRange, launch_ranges
from tapml_targets.webgpu.codegen.text import check_scalars, features_of, split_kernels

DIALECT: Final = "wgsl"

Finish: TypeAlias = Callable[[Any], Any]
"""What is done to a scheduled module before it is lowered."""

# What every implementation of WebGPU allows; more gains these schedules little.
_THREADS: Final = 256
_SHARED_BYTES: Final = 16384
_OPTIONS: Final[Mapping[str, tuple[str, ...] | None]] = {
    "compilation": ("cached", "anew"),
    "max_num_threads": None,
    "schedule": ("dlight", "fallback", "one-thread"),
}
_NARROWED: Final = {"int64": "int32", "int32": "int32", "uint32": "uint32", "float32": "float32"}


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled, in its form for processors.
    target
        Limits that the schedule keeps to, and options:

        - ``schedule``: ``dlight`` (all of dlight's rules, the default), ``fallback`` (its fallback
          rule alone), ``one-thread`` (none: the loops as they were written);
        - ``compilation``: ``anew`` changes nothing but the cache's key;
        - ``max_num_threads``.

    Returns
    -------
    Library
        One module in the dialect ``wgsl`` per kernel, and one operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, a value of it needs more than 32 bits, its elements are of a
        type that WGSL cannot compute, its host half cannot be a launch plan, or an option is
        unknown.
    """
    options = check_options(target, _OPTIONS)
    wanted = options.get("schedule", "dlight")
    tvm_target = _tvm_target(target.limits, options)
    if wanted == "one-thread":
        plain = lowering.load_function(replace(source, function=for_host(source.function)))
        return _refusing(source, lambda: schedule_on_one_thread(plain), tvm_target, target.limits)
    function = lowering.load_function(source)
    for by_hand in (sort_library, scan_library):
        library = by_hand(source, function, target.limits)
        if library is not None:
            return library

    def scheduled(given: OperatorSource, function: Any, finish: Finish = _as_it_is) -> Library:
        function = function.with_attr("global_symbol", given.identifier)
        library = None
        if wanted == "dlight":
            library = _with_all_rules(given, function, finish, tvm_target, target.limits)
        return library or _refusing(
            given,
            lambda: finish(lowering.schedule(function, tvm_target, _rules(general=False))),
            tvm_target,
            target.limits,
        )

    segmented = in_segments(source, function, target.limits, scheduled)
    return segmented or scheduled(source, function)


def _as_it_is(module: Any) -> Any:
    return module


def _with_all_rules(
    source: OperatorSource, function: Any, finish: Finish, tvm_target: Any, limits: Limits
) -> Library | None:
    """None where dlight's rules fail, or make kernels beyond the limits."""
    try:
        scheduled = finish(lowering.schedule(function, tvm_target, _rules(general=True)))
        library = _build(source, scheduled, tvm_target, limits)
    except RuntimeError:
        # Some of dlight's rules fail on functions they have already accepted.
        return None
    # dlight's GeneralReduction has its thread count written in; the fallback rule asks.
    return None if _exceeds(library, limits) else library


def _refusing(source: OperatorSource, schedule: Any, tvm_target: Any, limits: Limits) -> Library:
    try:
        return _build(source, schedule(), tvm_target, limits)
    except RuntimeError as error:
        raise CompileError(lowering.refusal(error)) from error


def _rules(*, general: bool) -> Sequence[Any]:
    gpu = dlight.gpu
    first = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction())
    return (*first, gpu.GeneralReduction(), gpu.Fallback()) if general else (gpu.Fallback(),)


def _tvm_target(limits: Limits, options: Mapping[str, str]) -> Any:
    threads = int(options.get("max_num_threads", _THREADS))
    shared = min(limits.max_shared_memory_bytes or _SHARED_BYTES, _SHARED_BYTES)
    return tvm.target.Target(
        {
            "kind": "webgpu",
            "max_num_threads": min(threads, limits.max_threads_per_block or threads),
            "max_shared_memory_per_block": shared,
        }
    ).with_host(tvm.target.Target("llvm"))


def _build(source: OperatorSource, scheduled: Any, tvm_target: Any, limits: Limits) -> Library:
    lowered = lowering.lower(scheduled, tvm_target)
    program = read_host_function(lowered.host, source)
    # For any device, not the target's: a Library may run where more is bound than there.
    ranges = launch_ranges(program, MOST_BYTES)
    shared = lowering.shared_memory_bytes(lowered.device)
    modules: list[CodeModule] = []
    kernels: dict[str, Kernel] = {}
    functions = {v.name_hint: f for v, f in lowered.device.functions.items()}
    for launch in launches(program.statements):
        name = launch.kernel
        if name in kernels:
            continue
        text = _kernel_text(name, functions[name], ranges[name], lowered)
        check_scalars(name, text, len(ranges[name].scalars))
        kernels[name] = Kernel(
            name=name,
            symbol=name,
            module=len(modules),
            threads_per_block=_threads(launch),
            shared_memory_bytes=shared.get(name, 0),
            features=features_of(text),
        )
        modules.append(CodeModule(DIALECT, text.encode()))
    statements = with_launches(program.statements, _arranged)
    return Library(
        target="webgpu",
        modules=tuple(modules),
        kernels=kernels,
        operators={source.name: replace(program, statements=statements)},
        metadata={"compiler": compiler_versions()},
    )


def _kernel_text(name: str, function: Any, launch: LaunchRange, lowered: lowering.Lowered) -> str:
    function, moves = spell_moves(function)
    modes = prove_narrow(function, launch)
    function, spelt = spell_out(function)
    function, elements = narrow_types(function)
    device = tvm.IRModule({name: function})
    build = tvm.get_global_func("target.build.webgpu")
    with as_runtime_errors("TVM cannot write the kernel"):
        printed = str(build(device, lowered.target).inspect_source("wgsl"))
    text = split_kernels(with_exact_constants(printed, device))[name]
    text = store_in_words(text, elements, modes, moves)
    return f"{spelt}\n{text}" if spelt else text


def _arranged(launch: Launch) -> Launch:
    """The launch with its buffers first, then its scalars in 32 bits."""
    buffers = [a for a in launch.arguments if isinstance(a, BufferArgument)]
    scalars = [a for a in launch.arguments if isinstance(a, ScalarArgument)]
    return replace(launch, arguments=(*buffers, *map(_narrowed, scalars)))


def _narrowed(scalar: ScalarArgument) -> ScalarArgument:
    if scalar.dtype not in _NARROWED:
        raise CompileError(f"a kernel takes a number of type {scalar.dtype}, WGSL has none")
    return replace(scalar, dtype=_NARROWED[scalar.dtype])


def _threads(launch: Launch) -> int:
    threads = product(launch.block)
    return threads if isinstance(threads, int) else 0


def _exceeds(library: Library, limits: Limits) -> bool:
    bounds = (
        limits.max_threads_per_block or _THREADS, limits.max_shared_memory_bytes or _SHARED_BYTES
    )  # fmt: skip
    return any(
        need > bound
        for kernel in library.kernels.values()
        for need, bound in zip(
            (kernel.threads_per_block, kernel.shared_memory_bytes), bounds, strict=True
        )
    )
