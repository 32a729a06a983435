"""The ways to kernels that GPUs share: sort and scan by hand, segments of a tensor too large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tapml_targets.codegen import gpu, lowering
from tapml_targets.codegen.host_function import for_host
from tapml_targets.codegen.scanning import scan_library
from tapml_targets.codegen.segmented import in_segments
from tapml_targets.codegen.sorting import sort_library
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.library import Library
from tapml_targets.limits import Limits


def stated_limits(limits: Limits) -> Limits:
    """`limits`, with what TVM's schedules are made for where the device states no bound."""
    return replace(
        limits,
        max_threads_per_block=limits.max_threads_per_block or gpu.THREADS,
        max_shared_memory_bytes=limits.max_shared_memory_bytes or gpu.SHARED_BYTES,
    )


def operator_library(
    source: OperatorSource,
    scheduler: gpu.Scheduler,
    limits: Limits,
    change: gpu.Change = gpu.as_it_is,
) -> Library:
    """Compile one operator, given in its form for processors.

    Parameters
    ----------
    source
        The operator.
    scheduler
        Schedules and builds it.
    limits
        Of the target.
    change
        Changes the function before anything else.

    Raises
    ------
    CompileError
        If TVM refuses the operator or its host half cannot be a launch plan.
    """
    if scheduler.wanted == "one-thread":
        plain = lowering.load_function(replace(source, function=for_host(source.function)))
        return scheduler.library(source, change(plain))
    function = change(lowering.load_function(source))
    for by_hand in (sort_library, scan_library):
        library = by_hand(source, function, limits, scheduler.build)
        if library is not None:
            return library

    def scheduled(
        given: OperatorSource, function: Any, finish: gpu.Change = gpu.as_it_is
    ) -> Library:
        function = function.with_attr("global_symbol", given.identifier)
        return scheduler.library(given, function, finish)

    segmented = in_segments(source, function, limits, scheduled)
    return segmented or scheduled(source, function)
