"""PrimFunc to OpenCL C: dlight's schedules, TVM's lowering, TVM's source text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import tvm_ffi
from tvm import tirx

from tapml_targets.codegen import gpu
from tapml_targets.codegen.lowering import Lowered
from tapml_targets.codegen.operator_library import operator_library, stated_limits
from tapml_targets.codegen.options import check_options
from tapml_targets.codegen.printed import TextBuild, tvm_text
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.thread_locals import move_into_threads
from tapml_targets.library import CodeModule, Library
from tapml_targets.limits import Limits
from tapml_targets.opencl.precise_math import precise
from tapml_targets.target import Target

DIALECT: Final = "opencl-c"

_FEATURES: Final = {
    # A number may pass through half precision with no variable of it.
    "float16": re.compile(r"\bhalf\d*\b|\bcl_khr_fp16\b"),
    "float64": re.compile(r"\bdouble\d*\b"),
}
# Allowed values of each option; None for numbers and TVM's names.
_OPTIONS: Final[Mapping[str, tuple[str, ...] | None]] = {
    **gpu.OPTIONS,
    "fast_math": ("0", "1"),
    "math": ("device", "precise"),
    "optimiser": ("on", "off"),
}


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled, in its form for processors: TVM's kernels for a scan have a race.
    target
        Limits that the schedule keeps to, and options:

        - ``schedule``: ``dlight`` (all of dlight's rules, the default), ``fallback`` (its fallback
          rule alone), ``one-thread`` (none: the loops as they were written);
        - ``fast_math``: ``1`` lets the driver's compiler trade accuracy for speed;
        - ``math``: ``precise`` forbids contraction, estimates and fast math; overrides
          ``fast_math``;
        - ``optimiser``: ``off`` switches off the driver's optimiser;
        - ``cache``: ``bypass`` changes only the cache key;
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


def _generate(source: OperatorSource, target: Target, options: Mapping[str, str]) -> Library:
    build = TextBuild(
        platform="opencl",
        dialect=DIALECT,
        generation=_tvm_target("opencl", target.limits, options),
        text=_text,
        features=_FEATURES,
    )
    scheduler = gpu.Scheduler(
        options.get("schedule", "dlight"),
        _tvm_target(options.get("schedule_kind", "opencl"), target.limits, options),
        target.limits,
        build,
    )
    # TVM's own kernels for scans, given in their place, have variables beside the launch.
    return operator_library(source, scheduler, _known(target.limits), move_into_threads)


def _text(lowered: Lowered) -> str:
    """TVM's text, with the names and the choices that OpenCL C has.

    TVM calls C's functions, and ``select`` of a narrow integer by a wider condition.
    """

    def chosen(node: Any) -> Any:
        if str(node.ty.dtype) not in _NARROW:
            return node
        return tirx.if_then_else(node.condition, node.true_value, node.false_value)

    device = tvm_ffi.structural_map(lowered.device, [(tirx.Select, chosen)])
    text = tvm_text("opencl", "cl")(replace(lowered, device=device))
    return _OF_C.sub(r"\1(", text)


# OpenCL has one name for every width.
_OF_C: Final = re.compile(
    r"\b(atan2|tan|sinh|cosh|asin|acos|atan|asinh|acosh|atanh|expm1|log1p|fmod)f\("
)
_NARROW: Final = ("int8", "uint8", "int16", "uint16")


def _known(limits: Limits) -> Limits:
    """With what every device has and none states: integers of 64 bits."""
    return replace(stated_limits(limits), features=limits.features | {"int64"})


def _built_as(module: CodeModule, options: Mapping[str, str]) -> CodeModule:
    """The module with the build options, and for precise math the text, that are asked for."""
    if options.get("fast_math") == "1":
        module = replace(module, options=("fast-math",))
    if options.get("math") == "precise":
        module = precise(module)
    if options.get("optimiser") == "off":
        module = replace(module, options=tuple(sorted({*module.options, "no-optimiser"})))
    return module


def _tvm_target(kind: str, limits: Limits, options: Mapping[str, str]) -> Any:
    own = ("max_threads_per_block", "max_shared_memory_per_block") if kind == "opencl" else ()
    return gpu.tvm_target(kind, limits, options, own)
