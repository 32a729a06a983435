"""Held against a device's limits before anything is uploaded: what a Library needs and lacks.

A kernel that a device cannot run is named with the limit, what it needs and what there is; found
here it costs no round trip and cannot be mistaken for a wrong result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError, LimitExceededError
from tapml_targets.expression import Expression, evaluate, product
from tapml_targets.library import (
    EntryProgram,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    launches,
)
from tapml_targets.limits import Limits

_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Problem:
    """One limit that a Library breaks.

    Attributes
    ----------
    where
        The kernel, or the tensor or workspace, that breaks it.
    limit
        Name of the bound, as in :class:`~tapml_targets.limits.Limits`, or of the feature.
    need
        What is needed.
    has
        What the device has.
    """

    where: str
    limit: str
    need: str
    has: str

    def __str__(self) -> str:
        return f"{self.where} needs {self.limit} {self.need}, the device has {self.has}"


def check(
    library: Library, limits: Limits, symbols: Mapping[str, int] | None = None
) -> tuple[Problem, ...]:
    """Find what a device with `limits` cannot do for `library`.

    Parameters
    ----------
    library
        Operators and entries to run.
    limits
        The device's bounds; 0 states none.
    symbols
        Values of shape symbols, where they are known: extents and sizes that depend on others are
        left to the launch.

    Returns
    -------
    tuple of Problem
        Empty where the Library fits.
    """
    problems: dict[Problem, None] = {}
    for operator in library.operators.values():
        problems.update(dict.fromkeys(_operator_problems(operator, library, limits, symbols or {})))
    for entry in library.entries.values():
        problems.update(dict.fromkeys(_entry_problems(entry, limits, symbols or {})))
    return tuple(problems)


def require(library: Library, limits: Limits, symbols: Mapping[str, int] | None = None) -> None:
    """Raise LimitExceededError naming every problem that :func:`check` finds."""
    problems = check(library, limits, symbols)
    if problems:
        raise LimitExceededError("; ".join(map(str, problems)))


def _operator_problems(
    operator: OperatorProgram, library: Library, limits: Limits, symbols: Mapping[str, int]
) -> Iterator[Problem]:
    for launch in launches(operator.statements):
        where = f"kernel {launch.kernel!r} of operator {operator.name!r}"
        yield from _kernel_problems(where, library.kernels[launch.kernel], limits)
        yield from _launch_problems(where, launch, limits, symbols)
    sizes = _parameter_sizes(operator)
    sizes += [(f"workspace {w.name!r}", w.nbytes) for w in operator.workspaces]
    yield from _memory_problems(f"operator {operator.name!r}", sizes, limits, symbols)


def _entry_problems(
    entry: EntryProgram, limits: Limits, symbols: Mapping[str, int]
) -> Iterator[Problem]:
    sizes = _parameter_sizes(entry)
    sizes += [(f"intermediate {s.name!r}", s.nbytes) for s in entry.storages]
    yield from _memory_problems(f"entry {entry.name!r}", sizes, limits, symbols)


def _parameter_sizes(program: OperatorProgram | EntryProgram) -> list[tuple[str, Expression]]:
    return [
        (f"parameter {p.name!r}", product((*p.shape, dtype(p.dtype).nbytes(1))))
        for p in program.parameters
    ]


def _memory_problems(
    of: str,
    sizes: Sequence[tuple[str, Expression]],
    limits: Limits,
    symbols: Mapping[str, int],
) -> Iterator[Problem]:
    total = 0
    for what, size in sizes:
        nbytes = _known(size, symbols) or 0
        total += nbytes
        yield from _above(f"{what} of {of}", "max_buffer_bytes", nbytes, limits.max_buffer_bytes)
    yield from _above(of, "memory_bytes", total, limits.memory_bytes)


def _kernel_problems(where: str, kernel: Kernel, limits: Limits) -> Iterator[Problem]:
    yield from _above(
        where, "max_threads_per_block", kernel.threads_per_block, limits.max_threads_per_block
    )
    yield from _above(
        where, "max_shared_memory_bytes", kernel.shared_memory_bytes, limits.max_shared_memory_bytes
    )
    for feature in kernel.features:
        if feature not in limits.features:
            has = ", ".join(sorted(limits.features)) or "none of the optional features"
            yield Problem(where, "feature", feature, has)


def _launch_problems(
    where: str, launch: Launch, limits: Limits, symbols: Mapping[str, int]
) -> Iterator[Problem]:
    yield from _above(where, "max_arguments", len(launch.arguments), limits.max_arguments)
    threads = _known(product(launch.block), symbols)
    yield from _above(where, "max_threads_per_block", threads or 0, limits.max_threads_per_block)
    for name, extents, bounds in (
        ("max_block", launch.block, limits.max_block),
        ("max_grid", launch.grid, limits.max_grid),
    ):
        yield from _extents_above(where, name, extents, bounds, symbols)


def _extents_above(
    where: str,
    limit: str,
    extents: Sequence[Expression],
    bounds: Sequence[int],
    symbols: Mapping[str, int],
) -> Iterator[Problem]:
    for axis, extent, bound in zip(_AXES, extents, bounds, strict=True):
        yield from _above(where, f"{limit}.{axis}", _known(extent, symbols) or 0, bound)


def _above(where: str, limit: str, need: int, has: int) -> Iterator[Problem]:
    if need > has > 0:
        yield Problem(where, limit, str(need), str(has))


def _known(expression: Expression, symbols: Mapping[str, int]) -> int | None:
    try:
        return evaluate(expression, symbols)
    except InputError:
        return None
