"""PrimFunc to C with threads: dlight's schedules, TVM's lowering and its printer.

TVM's printer is that of one platform; others whose compilers read the same language use it as well,
each under a prologue of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import tvm
import tvm_ffi

from tapml_targets.codegen import gpu, lowering
from tapml_targets.codegen.host_function import for_host
from tapml_targets.codegen.host_program import read_host_function
from tapml_targets.codegen.options import check_options
from tapml_targets.codegen.scanning import scan_library
from tapml_targets.codegen.sorting import sort_library
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.tvm_errors import as_runtime_errors
from tapml_targets.errors import CompileError
from tapml_targets.installed import compiler_versions
from tapml_targets.library import (
    DYNAMIC_SHARED_MEMORY,
    CodeModule,
    Kernel,
    Library,
    launches,
)
from tapml_targets.target import Target
from tapml_targets.threaded_c.prologues import Prologue

# The lanes that the shuffles are made for.
WARP: Final = 32
_KERNEL: Final = 'extern "C" __global__'
_FEATURES: Final = (
    ("float16", re.compile(r"\bhalf\d?\b")),
    ("float64", re.compile(r"\bdouble\d?\b")),
)
_SHUFFLES: Final = re.compile(r"\b__(?:shfl|activemask)")
OPTIONS: Final[Mapping[str, tuple[str, ...] | None]] = {
    **gpu.OPTIONS,
    "fast_math": ("0", "1"),
    "math": ("device", "precise"),
    "optimiser": ("on", "off"),
}
"""Options of these generators; see :func:`generate`."""


@dataclass(frozen=True)
class Dialect:
    """What is a platform's own.

    Attributes
    ----------
    name
        Of the dialect.
    prologue
        What its texts begin with.
    printer
        The kind of TVM's target that code is lowered for and whose printer writes it.
    schedule_kind
        TVM's target kind that dlight's rules are asked for.
    schedule_attributes, attributes
        Of that target, and of the one that code is lowered for.
    bounds
        Bounds that the scheduling target has.
    fixed_width
        Whether a kernel with shuffles runs on subgroups of :data:`WARP` threads alone.
    """

    name: str
    prologue: Prologue
    printer: str
    schedule_kind: str
    schedule_attributes: Mapping[str, Any]
    attributes: Mapping[str, Any]
    bounds: tuple[str, ...] = ("max_threads_per_block", "max_shared_memory_per_block")
    fixed_width: bool = True


def generate(source: OperatorSource, target: Target, dialect: Dialect) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled, in its form for processors: TVM's kernels for a scan have a race.
    target
        Limits that the schedule keeps to, and options:

        - ``schedule``: ``dlight`` (all of dlight's rules, the default), ``fallback`` (its fallback
          rule alone), ``one-thread`` (none: the loops as they were written);
        - ``fast_math``: ``1`` lets the compiler trade accuracy for speed;
        - ``math``: ``precise`` forbids contraction and fast math; overrides ``fast_math``;
        - ``optimiser``: ``off`` switches off the compiler's optimiser;
        - ``cache``: ``bypass`` changes only the cache key;
        - ``schedule_kind``: another TVM target kind to schedule for;
        - ``max_num_threads``.
    dialect
        The platform's.

    Returns
    -------
    Library
        One module with all kernels of the operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, its host half cannot be a launch plan, or an option is unknown.
    """
    options = check_options(target, OPTIONS)
    wanted = options.get("schedule", "dlight")
    if wanted == "one-thread":
        source = replace(source, function=for_host(source.function))
    function = lowering.load_function(source)
    lowered_for = gpu.tvm_target(
        dialect.printer, target.limits, options, dialect.bounds, **dialect.attributes
    )
    kind = options.get("schedule_kind", dialect.schedule_kind)
    known = kind == dialect.schedule_kind
    scheduling = gpu.tvm_target(
        kind,
        target.limits,
        options,
        dialect.bounds if known else (),
        **(dialect.schedule_attributes if known else {}),
    )
    scheduler = gpu.Scheduler(
        wanted,
        scheduling,
        target.limits,
        lambda given, scheduled: _build(given, scheduled, lowered_for, target, dialect),
    )
    library = _by_hand(wanted, source, function, scheduler) or scheduler.library(source, function)
    built_as = tuple(sorted(_build_options(options)))
    return replace(
        library, modules=tuple(replace(each, options=built_as) for each in library.modules)
    )


def _by_hand(
    wanted: str, source: OperatorSource, function: Any, scheduler: gpu.Scheduler
) -> Library | None:
    """A sort or scan by the kernels written for it; None for others."""
    if wanted == "one-thread":
        return None
    for write in (sort_library, scan_library):
        library = write(source, function, scheduler.limits, scheduler.build)
        if library is not None:
            return library
    return None


def _build_options(options: Mapping[str, str]) -> set[str]:
    """Names of the build options, as the languages have them."""
    found = {"no-optimiser"} if options.get("optimiser") == "off" else set()
    if options.get("math") == "precise":
        found.add("no-contraction")
    elif options.get("fast_math") == "1":
        found.add("fast-math")
    return found


def _build(
    source: OperatorSource, scheduled: Any, lowered_for: Any, target: Target, dialect: Dialect
) -> Library:
    lowered = lowering.lower(scheduled, lowered_for)
    program = read_host_function(lowered.host, source, target.limits.features)
    text = kernels_text(lowered)
    features = tuple(name for name, pattern in _FEATURES if pattern.search(text))
    width = WARP if dialect.fixed_width and _SHUFFLES.search(text) else 0
    shared = lowering.shared_memory_bytes(lowered.device)
    kernels: dict[str, Kernel] = {}
    for launch in launches(program.statements):
        dynamic = launch.dynamic_shared_bytes != 0
        kernels[launch.kernel] = Kernel(
            name=launch.kernel,
            symbol=launch.kernel,
            module=0,
            threads_per_block=gpu.block_threads(launch),
            shared_memory_bytes=shared.get(launch.kernel, 0),
            # A module is built at once, so each of its kernels needs the features of all.
            features=(*features, DYNAMIC_SHARED_MEMORY) if dynamic else features,
            subgroup_width=width,
        )
    return Library(
        target=target.platform,
        modules=(CodeModule(dialect.name, (dialect.prologue.of(text) + text).encode()),),
        kernels=kernels,
        operators={source.name: program},
        metadata={"compiler": compiler_versions()},
    )


def kernels_text(lowered: lowering.Lowered) -> str:
    """The kernels as TVM prints them, without what it prints before them.

    Raises
    ------
    CompileError
        If there are none.
    RuntimeError
        If TVM fails.
    """
    printer = str(lowered.target.kind.name)
    _keep_the_text(printer)
    build = tvm.get_global_func(f"target.build.{printer}")
    with as_runtime_errors("TVM cannot write the kernels"):
        printed = str(build(lowered.device, lowered.target).inspect_source(printer))
    start = printed.find(_KERNEL)
    if start < 0:
        raise CompileError("TVM printed no kernel")
    return printed[start:].rstrip() + "\n"


@cache
def _keep_the_text(printer: str) -> None:
    """TVM would compile what it prints; the device does that, with its own compiler."""
    tvm_ffi.register_global_func(f"tvm_callback_{printer}_compile", _as_it_is, override=True)


def _as_it_is(code: str, _: Any = None) -> bytes:
    # Where there is a GPU, TVM takes bytes alone.
    return code.encode()
