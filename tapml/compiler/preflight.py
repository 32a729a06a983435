"""Held against a device's limits before anything is uploaded: what a Library needs and lacks.

A kernel that a device cannot run is named with the limit, what it needs and what there is; found
here it costs no round trip and cannot be mistaken for a wrong result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tapml.compiler.loop_counts import loop_iterations
from tapml.compiler.reach import Reach, Symbols, known_extent, reached_in
from tapml.compiler.wgsl_loops import WGSL, like_c
from tapml_targets.dtype import dtype
from tapml_targets.errors import LimitExceededError
from tapml_targets.expression import Expression, product
from tapml_targets.library import (
    Bind,
    BufferArgument,
    Condition,
    EntryProgram,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    ScalarArgument,
    Statement,
)
from tapml_targets.limits import Limits

_AXES = ("x", "y", "z")
# The bound is measured on one kernel and counted by the device in its own way: "near" is early.
_NEAR_SHARE = 0.75

UNCUT: Final = (
    "a tensor is one buffer, whatever the kernels: float16, a smaller model or a device with "
    "larger buffers"
)
"""What to do where a tensor, say a weight, is larger than a device's largest buffer."""


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
    symbols
        Values of the shape symbols where that is needed, such as ``n = 2048``; empty where it is
        needed always.
    """

    where: str
    limit: str
    need: str
    has: str
    symbols: str = ""

    @property
    def is_a_tensors(self) -> bool:
        """Whether a tensor is larger than a buffer may be, which no kernel changes."""
        return self.limit == "max_buffer_bytes"

    def __str__(self) -> str:
        at = f" at {self.symbols}" if self.symbols else ""
        return f"{self.where} needs {self.limit} {self.need}{at}, the device has {self.has}"


def check(
    library: Library,
    limits: Limits,
    symbols: Mapping[str, int] | None = None,
    *,
    reach: Reach | None = None,
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
    reach
        Values of the symbols of the plan that the Library was made from
        (:func:`tapml.compiler.reach.reach_of`): what the longest input needs is looked at as well.

    Returns
    -------
    tuple of Problem
        Empty where the Library fits.
    """
    reach = reach or Reach()
    problems: list[Problem] = []
    reached = reached_in(library, reach.entries)
    for operator in library.operators.values():
        problems += _gravest(_operator_problems(operator, library, limits, symbols or {}))
        for values in reach.operators.get(operator.name, ()) or reached.get(operator.name, ()):
            problems += _at(values, _operator_problems(operator, library, limits, values))
    for entry in library.entries.values():
        problems += _gravest(_entry_problems(entry, limits, symbols or {}))
        values = reach.entries.get(entry.name, {})
        problems += _at(values, _entry_problems(entry, limits, values))
    return _gravest(problems)


def require(
    library: Library,
    limits: Limits,
    symbols: Mapping[str, int] | None = None,
    *,
    reach: Reach | None = None,
) -> None:
    """Raise LimitExceededError naming every problem that :func:`check` finds, and what helps."""
    problems = check(library, limits, symbols, reach=reach)
    if problems:
        hint = "; shorter inputs need less" if any(p.symbols for p in problems) else ""
        if any(p.is_a_tensors for p in problems):
            hint += f"; {UNCUT}"
        raise LimitExceededError("; ".join(map(str, problems)) + hint)


@dataclass(frozen=True)
class LongLoop:
    """A kernel whose loops may be ended by a device before they are done.

    Attributes
    ----------
    where
        The kernel.
    iterations
        How many one thread makes, as far as its source tells.
    bound
        Iterations after which the device was measured to end a loop.
    """

    where: str
    iterations: int
    bound: int

    def __str__(self) -> str:
        what = "more than" if self.iterations > self.bound else "close to"
        return (
            f"{self.where} makes {self.iterations:,} iterations in one thread, {what} the "
            f"{self.bound:,} after which this device was measured to end a loop without a word: "
            "its sums may be cut short"
        )


def long_loops(
    library: Library,
    loop_bound: int | None,
    symbols: Mapping[str, int] | None = None,
    *,
    reach: Reach | None = None,
) -> tuple[LongLoop, ...]:
    """The kernels whose iterations come near a device's measured loop bound, or pass it.

    A warning and no problem: what the device makes of it, the carved tests show.

    Parameters
    ----------
    loop_bound
        :attr:`tapml_targets.self_test.facts.SelfTest.loop_bound`; None where a device has none.
    library, symbols, reach
        As :func:`check` takes them.

    Returns
    -------
    tuple of LongLoop
        Each kernel once, with the most iterations that are known; empty without a bound.
    """
    if loop_bound is None:
        return ()
    found: dict[str, LongLoop] = {}
    for operator in library.operators.values():
        known = (reach or Reach()).operators.get(operator.name, ())
        for values in (symbols or {}, *known):
            for launch, at in _launches(operator.statements, dict(values)):
                where = f"kernel {launch.kernel!r} of operator {operator.name!r}"
                iterations = _iterations(library, launch, at)
                most = found[where].iterations if where in found else 0
                if iterations >= _NEAR_SHARE * loop_bound and iterations > most:
                    found[where] = LongLoop(where, iterations, loop_bound)
    return tuple(found.values())


def _iterations(library: Library, launch: Launch, symbols: Symbols) -> int:
    kernel = library.kernels[launch.kernel]
    module = library.modules[kernel.module]
    try:
        source = module.code.decode()
    except UnicodeDecodeError:
        # Machine code runs on processors, which end no loops.
        return 0
    if module.dialect == WGSL:
        source = like_c(source, kernel.symbol)
    scalars = {
        position: value
        for position, argument in enumerate(launch.arguments)
        if isinstance(argument, ScalarArgument)
        and (value := known_extent(argument.value, symbols)) is not None
    }
    return loop_iterations(source, kernel.symbol, scalars)


def _at(symbols: Symbols, problems: Iterable[Problem]) -> list[Problem]:
    text = ", ".join(f"{name} = {value}" for name, value in symbols.items())
    return [replace(problem, symbols=text) for problem in problems]


def _gravest(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """One problem per place and limit: what always holds, or else what needs most."""
    found: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        # Features are told apart by name, extents are of one kind.
        feature = problem.need if problem.limit == "feature" else ""
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
        yield from _kernel_problems(where, library.kernels[launch.kernel], limits)
        yield from _launch_problems(where, launch, limits, known)
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


def _binding_problems(
    where: str,
    launch: Launch,
    tensors: Mapping[str, tuple[str, Expression]],
    limits: Limits,
    symbols: Symbols,
) -> Iterator[Problem]:
    """Buffers that a kernel is given: how many, and how large a window on each."""
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
