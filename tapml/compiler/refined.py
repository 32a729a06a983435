"""Refines an operator into the steps of its body, to fit a device's limits.

A kernel that fuses several steps takes more buffers, threads or shared memory than each step alone.
If the fused kernel exceeds such a limit, each step becomes a separate kernel and intermediates are
stored in device memory. It remains one operator, with the same carved tests and one verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tapml.compiler.one_operator import as_operator
from tapml.compiler.preflight import Problem, check
from tapml.compiler.unfused import is_fused, unfused
from tapml.plan.graph_plan import Operator
from tapml_targets.errors import CompileError
from tapml_targets.library import Library, launches
from tapml_targets.limits import Limits
from tapml_targets.placement import with_placement

# Limits on a single kernel, as opposed to tensor memory and features.
_KERNEL_LIMITS: Final = frozenset(
    {
        "max_arguments",
        "max_binding_bytes",
        "max_block",
        "max_shared_memory_bytes",
        "max_storage_buffers",
        "max_threads_per_block",
    }
)


def kernel_limit_violations(
    operator: Operator, library: Library, limits: Limits
) -> tuple[Problem, ...]:
    """The limits that an operator's fused kernels exceed and smaller kernels may not.

    Empty for an operator of one step, which cannot be split.
    """
    if not is_fused(operator):
        return ()
    problems = check(library, limits)
    return tuple(each for each in problems if each.limit.partition(".")[0] in _KERNEL_LIMITS)


def refined(
    operator: Operator,
    violations: Sequence[Problem],
    limits: Limits,
    compile_one: Callable[[Operator], Library],
) -> Library | None:
    """The operator as the steps of its body; None if that does not fit either.

    Parameters
    ----------
    operator
        A fused operator.
    violations
        The exceeded limits, from :func:`kernel_limit_violations`.
    limits
        The device's.
    compile_one
        Compiles one step.
    """
    try:
        library = as_operator(unfused(operator, compile_one), operator.name)
    except CompileError:
        return None
    if check(library, limits):
        return None
    (program,) = library.operators.values()
    count = sum(1 for _ in launches(program.statements))
    first = violations[0]
    reason = f"refined into {count} kernels: {first.limit} needs {first.need}, the device has "
    metadata = with_placement(library.metadata, operator.name, reason + first.has)
    return replace(library, metadata=metadata)
