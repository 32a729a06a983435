"""Compares a Library's requirements with a device's limits before any upload.

The error names the kernel, the limit, the required and the available amount. Found here, it costs
no round trip and cannot be mistaken for a wrong result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tapml.compiler.symbol_ranges import SymbolRanges, Symbols, known_extent, library_symbol_ranges
from tapml_targets.dtype import dtype
from tapml_targets.errors import LimitExceededError
from tapml_targets.expression import Expression, product
from tapml_targets.library import (
    Bind,
    BufferArgument,
    CodeModule,
    Condition,
    EntryProgram,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    Statement,
)
from tapml_targets.limits import Limits
from tapml_targets.module_check import unmet

_AXES = ("x", "y", "z")
# A device that lacks a feature is in the way of every kernel.
_SHOWN: Final = 3

BUFFER_ADVICE: Final = (
    "every tensor needs a single buffer, whatever the kernels: use float16, a smaller model or a "
    "device with larger buffers"
)
"""Advice if a tensor, such as a weight, exceeds a device's largest buffer."""


@dataclass(frozen=True)
class Problem:
    """One limit that a Library exceeds.

    Attributes
    ----------
    where
        The kernel, tensor or workspace that exceeds it.
    limit
        Name of the feature or of the field of :class:`~tapml_targets.limits.Limits`.
    need, has
        The required and the available amount.
    symbols
        Shape symbols at which it is exceeded, such as ``n = 2048``; empty if always.
    """

    where: str
    limit: str
    need: str
    has: str
    symbols: str = ""

    @property
    def is_tensor_size(self) -> bool:
        """Whether a tensor exceeds the largest buffer, which no kernel can change."""
        return self.limit == "max_buffer_bytes"

    def __str__(self) -> str:
        at = f" at {self.symbols}" if self.symbols else ""
        return f"{self.where} needs {self.limit} {self.need}{at}, the device has {self.has}"


def check(
    library: Library,
    limits: Limits,
    symbols: Mapping[str, int] | None = None,
    *,
    ranges: SymbolRanges | None = None,
) -> tuple[Problem, ...]:
    """Find the limits of a device that `library` exceeds.

    Parameters
    ----------
    library
        Operators and entries to run.
    limits
        The device's limits; 0 means unknown.
    symbols
        Known values of shape symbols; extents that depend on others are checked at the launch.
    ranges
        Symbol ranges of the plan that the Library was made from
        (:func:`tapml.compiler.symbol_ranges.symbol_ranges`), to check the longest input, too.

    Returns
    -------
    tuple of Problem
        Empty if the Library fits.
    """
    ranges = ranges or SymbolRanges()
    problems: list[Problem] = []
    in_library = library_symbol_ranges(library, ranges.entries)
    for operator in library.operators.values():
        problems += _gravest(_operator_problems(operator, library, limits, symbols or {}))
        for values in ranges.operators.get(operator.name, ()) or in_library.get(operator.name, ()):
            problems += _at(values, _operator_problems(operator, library, limits, values))
    for entry in library.entries.values():
        problems += _gravest(_entry_problems(entry, limits, symbols or {}))
        values = ranges.entries.get(entry.name, {})
        problems += _at(values, _entry_problems(entry, limits, values))
    return _gravest(problems)


def require(
    library: Library,
    limits: Limits,
    symbols: Mapping[str, int] | None = None,
    *,
    ranges: SymbolRanges | None = None,
) -> None:
    """Raise LimitExceededError with the first problems from :func:`check`, and advice."""
    problems = check(library, limits, symbols, ranges=ranges)
    if problems:
        hint = "; shorter inputs need less" if any(p.symbols for p in problems) else ""
        if any(p.is_tensor_size for p in problems):
            hint += f"; {BUFFER_ADVICE}"
        more = len(problems) - _SHOWN
        said = "; ".join(map(str, problems[:_SHOWN])) + (f"; and {more} more" if more > 0 else "")
        raise LimitExceededError(said + hint)


def _at(symbols: Symbols, problems: Iterable[Problem]) -> list[Problem]:
    text = ", ".join(f"{name} = {value}" for name, value in symbols.items())
    return [replace(problem, symbols=text) for problem in problems]


def _gravest(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """One problem per place and limit: an unconditional one, or else the one that needs most."""
    found: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        # What is no amount is distinguished by name; extents of a limit are comparable.
        feature = "" if problem.need.isdecimal() else problem.need
        key = (problem.where, problem.limit, feature)
        known = found.setdefault(key, problem)
        if known.symbols and problem.symbols and int(problem.need) > int(known.need):
            found[key] = problem
    return tuple(found.values())


def _operator_problems(
    operator: OperatorProgram, library: Library, limits: Limits, symbols: Mapping[str, int]
) -> Iterator[Problem]:
    sizes = _parameter_sizes(operator)
    sizes += [(f"workspace {w.name!r}", w.nbytes) for w in operator.workspaces]
    names = [p.name for p in operator.parameters] + [w.name for w in operator.workspaces]
    tensors = dict(zip(names, sizes, strict=True))
    for launch, known in _launches(operator.statements, dict(symbols)):
        where = f"kernel {launch.kernel!r} of operator {operator.name!r}"
        kernel = library.kernels[launch.kernel]
        yield from _kernel_problems(where, kernel, library.modules[kernel.module], limits)
        yield from _launch_problems(where, launch, limits, known)
        dynamic = known_extent(launch.dynamic_shared_bytes, known) or 0
        shared = dynamic and kernel.shared_memory_bytes + dynamic
        yield from _above(where, "max_shared_memory_bytes", shared, limits.max_shared_memory_bytes)
        yield from _binding_problems(where, launch, tensors, limits, symbols)
    yield from _memory_problems(f"operator {operator.name!r}", sizes, limits, symbols)


def _launches(
    statements: Iterable[Statement], symbols: dict[str, int]
) -> Iterator[tuple[Launch, Symbols]]:
    """Every launch that may happen, with the symbols known there."""
    for statement in statements:
        if isinstance(statement, Launch):
            yield statement, symbols
        elif isinstance(statement, Bind):
            value = known_extent(statement.value, symbols)
            symbols.pop(statement.symbol, None)
            if value is not None:
                symbols[statement.symbol] = value
        elif isinstance(statement, Loop):
            yield from _launches(statement.body, dict(symbols))
        elif isinstance(statement, Condition):
            holds = known_extent(statement.condition, symbols)
            if holds is None or holds:
                yield from _launches(statement.then, dict(symbols))
            if not holds:
                yield from _launches(statement.otherwise, dict(symbols))


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
        nbytes = known_extent(size, symbols) or 0
        total += nbytes
        yield from _above(f"{what} of {of}", "max_buffer_bytes", nbytes, limits.max_buffer_bytes)
    yield from _above(of, "memory_bytes", total, limits.memory_bytes)


def _kernel_problems(
    where: str, kernel: Kernel, module: CodeModule, limits: Limits
) -> Iterator[Problem]:
    yield from _above(
        where, "max_threads_per_block", kernel.threads_per_block, limits.max_threads_per_block
    )
    yield from _above(
        where, "max_shared_memory_bytes", kernel.shared_memory_bytes, limits.max_shared_memory_bytes
    )
    for need in unmet(kernel, module, limits):
        yield Problem(where, *need)


def _binding_problems(
    where: str,
    launch: Launch,
    tensors: Mapping[str, tuple[str, Expression]],
    limits: Limits,
    symbols: Symbols,
) -> Iterator[Problem]:
    """Check the number of a kernel's buffers and the size of each window."""
    given = [a for a in launch.arguments if isinstance(a, BufferArgument)]
    yield from _above(where, "max_storage_buffers", len(given), limits.max_storage_buffers)
    for argument in dict.fromkeys(given):
        what, size = tensors[argument.name]
        nbytes = known_extent(size if argument.nbytes is None else argument.nbytes, symbols) or 0
        yield from _above(
            f"{what} in {where}", "max_binding_bytes", nbytes, limits.max_binding_bytes
        )


def _launch_problems(
    where: str, launch: Launch, limits: Limits, symbols: Mapping[str, int]
) -> Iterator[Problem]:
    yield from _above(where, "max_arguments", len(launch.arguments), limits.max_arguments)
    threads = known_extent(product(launch.block), symbols)
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
        yield from _above(where, f"{limit}.{axis}", known_extent(extent, symbols) or 0, bound)


def _above(where: str, limit: str, need: int, has: int) -> Iterator[Problem]:
    if need > has > 0:
        yield Problem(where, limit, str(need), str(has))
