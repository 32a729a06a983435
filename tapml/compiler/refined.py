"""An operator in the form that a device's limits leave: refined into the steps of its body.

A kernel that does several steps at once takes more buffers, threads or shared memory than one that
does a single step. Where the fused kernel breaks such a limit, each step becomes a kernel of its
own and what goes from one to the next lies in device memory. It stays one operator: its carved
tests are those of the whole, and so is the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tapml.compiler.one_operator import as_operator
from tapml.compiler.preflight import Problem, check
from tapml.compiler.unfused import is_fused, unfused
from tapml.graph.plan import Operator
from tapml_targets.errors import CompileError
from tapml_targets.library import Library, launches
from tapml_targets.limits import Limits
from tapml_targets.placement import placed

# What one kernel is given or takes; a tensor's memory and a feature are another matter.
_OF_KERNELS: Final = frozenset(
    {
        "max_arguments",
        "max_binding_bytes",
        "max_block",
        "max_shared_memory_bytes",
        "max_storage_buffers",
        "max_threads_per_block",
    }
)


def lacking(operator: Operator, library: Library, limits: Limits) -> tuple[Problem, ...]:
    """The limits that an operator's fused kernels break and smaller kernels may keep to.

    Empty for an operator of one step, which there is no way to take apart.
    """
    if not is_fused(operator):
        return ()
    problems = check(library, limits)
    return tuple(each for each in problems if each.limit.partition(".")[0] in _OF_KERNELS)


def refined(
    operator: Operator,
    lacks: Sequence[Problem],
    limits: Limits,
    compile_one: Callable[[Operator], Library],
) -> Library | None:
    """The operator as the steps of its body; None where that does not fit either.

    Parameters
    ----------
    operator
        A fused operator.
    lacks
        Why it is taken apart: what :func:`lacking` found.
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
    first = lacks[0]
    reason = f"refined into {count} kernels: {first.limit} needs {first.need}, the device has "
    metadata = placed(library.metadata, operator.name, reason + first.has)
    return replace(library, metadata=metadata)
