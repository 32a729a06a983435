"""PrimFunc to Metal's shading language: dlight's schedules, TVM's lowering, TVM's text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tapml_targets.codegen import gpu
from tapml_targets.codegen.kept_calls import keep_own
from tapml_targets.codegen.operator_library import operator_library, stated_limits
from tapml_targets.codegen.options import check_options
from tapml_targets.codegen.printed import TextBuild, tvm_text
from tapml_targets.codegen.shaders import buffers_first
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.library import Library
from tapml_targets.metal.codegen.quick_import import tensor_intrinsics
from tapml_targets.metal.codegen.text import as_module
from tapml_targets.target import Target

DIALECT: Final = "msl"

_OPTIONS: Final[Mapping[str, tuple[str, ...] | None]] = {**gpu.OPTIONS, "fast_math": ("0", "1")}
_SUBGROUPS: Final = re.compile(r"\bsimd_\w+\(|\bsimdgroup_\w+")
_FEATURES: Final = {
    "float16": re.compile(r"\b(?:simdgroup_)?half\d*(?:x\d)?\b"),
    "subgroups": _SUBGROUPS,
}
_BOUNDS: Final = ("max_threads_per_block", "max_shared_memory_per_block")


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
        - ``schedule_kind``: a TVM target kind to schedule for, default ``webgpu``. ``metal`` has
          dlight's own products for Apple's GPUs, with matrices of a SIMD group;
        - ``fast_math``: ``1`` lets Metal's compiler trade accuracy for speed;
        - ``cache``: ``bypass`` changes only the cache's key;
        - ``max_num_threads``.

    Returns
    -------
    Library
        One module in the dialect ``msl``, its kernels, and one operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, elements of it are of a type that Metal has not, its host half
        cannot be a launch plan, or an option is unknown.
    """
    options = check_options(target, _OPTIONS)
    limits = target.limits
    width = gpu.subgroup_width(limits)
    text = tvm_text("metal", "metal")
    build = TextBuild(
        platform="metal",
        dialect=DIALECT,
        generation=gpu.tvm_target("metal", limits, options, _BOUNDS, thread_warp_size=width),
        text=lambda lowered: as_module(text(lowered)),
        features=_FEATURES,
        arrange=lambda launch: buffers_first(launch, lambda number: number),
        subgroup_width=lambda text: width if _SUBGROUPS.search(text) else 0,
    )
    # dlight's rules for WebGPU need no tensor intrinsics, whose import takes longer than a model's
    # kernels, and leave SIMD groups to the lowering, which keeps to the device's width. Those for
    # Metal are tuned for one Mac and take 32 threads for granted: they are there for who asks.
    kind = options.get("schedule_kind", "webgpu")
    scheduling = gpu.tvm_target(kind, limits, options, _BOUNDS[kind != "metal" :])
    if kind == "metal":
        tensor_intrinsics()
    scheduler = gpu.Scheduler(
        options.get("schedule", "dlight"), scheduling, stated_limits(limits), build
    )
    library = operator_library(source, scheduler, limits, keep_own)
    return _as_asked(library, options)


def _as_asked(library: Library, options: Mapping[str, Any]) -> Library:
    """With the build options that are asked for."""
    if options.get("fast_math") != "1":
        return library
    modules = tuple(replace(module, options=("fast-math",)) for module in library.modules)
    return replace(library, modules=modules)
