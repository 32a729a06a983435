"""Operator x target -> Library: in an isolated child, in parallel, cached on disk.

An operator whose fused kernel breaks the target's limits comes refined (:mod:`.refined`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from tapml.compiler.cache import LibraryCache, joint_hash, library_key
from tapml.compiler.job import to_payload
from tapml.compiler.refined import lacking, refined
from tapml.compiler.unfused import is_fused
from tapml.graph.plan import Operator
from tapml.isolate.death import ChildDiedError
from tapml.isolate.pool import Pool
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError, ProtocolError, SetupError, TapmlError
from tapml_targets.installed import install_hint
from tapml_targets.library import Library
from tapml_targets.library_format import pack, unpack
from tapml_targets.platforms import check_platform, function_kind, platform_names
from tapml_targets.target import Target

DEFAULT_DEADLINE_SECONDS: Final = 120.0

Progress = Callable[[int, int, Operator, "Library | CompileError"], None]


class Compiler:
    """Compiles operators for targets; a context manager.

    A compilation that crashes or hangs costs one operator: its CompileError names the signal or the
    deadline and holds what the compiler printed last.

    Parameters
    ----------
    cache_dir
        Folder of compiled Libraries; None for the user's cache.
    workers
        Compilations at a time; None for the processors this process may use.
    deadline_seconds
        After this long a compilation is killed.

    Raises
    ------
    SetupError
        If TVM is not installed.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> None:
        if find_spec("tvm") is None:
            raise SetupError(
                f"compiling needs Apache TVM, which is not installed: {install_hint('host')}"
            )
        self._cache = LibraryCache(None if cache_dir is None else Path(cache_dir))
        self._pool = Pool(
            workers=workers,
            deadline_seconds=deadline_seconds,
            preload=("tapml.compiler.job", "tapml_targets.codegen.lowering", *_generators()),
            without=("torch",),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the compile processes."""
        self._pool.close()

    def warm_up(self) -> None:
        """Begin to load the compiler in the background; the first compilation then waits less."""
        self._pool.start()

    def compile(self, operator: Operator, target: Target) -> Library:
        """Compile one operator.

        Raises
        ------
        CompileError
            If the compiler refuses the operator, crashes, or misses its deadline.
        """
        ((_, outcome),) = self.compile_all([operator], target)
        if isinstance(outcome, CompileError):
            raise outcome
        return outcome

    def compile_all(
        self,
        operators: Iterable[Operator],
        target: Target,
        *,
        progress: Progress | None = None,
    ) -> Iterator[tuple[Operator, Library | CompileError]]:
        """Compile operators in parallel.

        Parameters
        ----------
        operators
            What to compile.
        target
            Platform, options and limits.
        progress
            Called with (done, total, operator, outcome) as each result is handed out.

        Yields
        ------
        tuple
            Each operator with its Library, or with the CompileError that says why there is none, in
            the order asked for and as soon as it is there.
        """
        operators = list(operators)
        for done, (operator, packed) in enumerate(self.pack_all(operators, target), 1):
            outcome: Library | CompileError
            try:
                outcome = (
                    packed
                    if isinstance(packed, CompileError)
                    else self.read(operator, target, packed)
                )
            except CompileError as error:
                outcome = error
            if progress is not None:
                progress(done, len(operators), operator, outcome)
            yield operator, outcome

    def pack_all(
        self, operators: Iterable[Operator], target: Target
    ) -> Iterator[tuple[Operator, bytes | CompileError]]:
        """The same, each Library as its bytes; one that is in the cache is not looked into.

        Yields
        ------
        tuple
            Each operator with what :meth:`read` takes, or with its CompileError.
        """
        check_platform(target.platform)
        work = [(operator, self._begin(operator, target)) for operator in operators]
        for operator, begun in work:
            found = begun if isinstance(begun, bytes) else self._end(operator, target, *begun)
            if isinstance(found, bytes):
                found = self._within_limits(operator, target, found)
            yield operator, found

    def read(self, operator: Operator, target: Target, packed: bytes) -> Library:
        """The Library that :meth:`pack_all` gave for an operator.

        Raises
        ------
        CompileError
            If what the cache held is no Library, and compiling it anew fails.
        """
        try:
            return unpack(packed)
        except ProtocolError:
            self._cache.remove(library_key(operator_source(operator, target), target))
            return self.compile(operator, target)

    def _begin(self, operator: Operator, target: Target) -> bytes | tuple[str, Future[Any]]:
        source = operator_source(operator, target)
        key = library_key(source, target)
        kept = self._cache.get_packed(key)
        if kept is not None:
            return kept
        return key, self._pool.submit("compile", to_payload(source, target))

    def _end(
        self, operator: Operator, target: Target, key: str, future: Future[Any]
    ) -> bytes | CompileError:
        try:
            packed: bytes = future.result()
            unpack(packed)
        except CompileError as error:
            return error
        except ChildDiedError as error:
            failure = CompileError(
                f"the compiler {error.report.reason} while compiling operator {operator.name!r} "
                f"for {target.platform}; keep the operator on the source, or try another schedule. "
                f"It printed last:\n{error.report.stderr_tail or '(nothing)'}"
            )
            failure.__cause__ = error
            return failure
        except TapmlError as error:
            failure = CompileError(f"operator {operator.name!r}: {error}")
            failure.__cause__ = error
            return failure
        self._cache.put(key, packed)
        return packed

    def _within_limits(self, operator: Operator, target: Target, packed: bytes) -> bytes:
        """The Library, or the refined one where its fused kernel breaks the target's limits."""
        if not is_fused(operator):
            return packed
        try:
            lacks = lacking(operator, unpack(packed), target.limits)
        except ProtocolError:
            # Whoever reads it has it made anew.
            return packed
        if not lacks:
            return packed
        fused = library_key(operator_source(operator, target), target)
        key = joint_hash([fused, "refined", *map(str, lacks)])
        kept = self._cache.get(key)
        if kept is not None:
            return pack(kept)
        made = refined(operator, lacks, target.limits, self._steps(operator, target))
        if made is None:
            return packed
        packed = pack(made)
        self._cache.put(key, packed)
        return packed

    def _steps(self, operator: Operator, target: Target) -> Callable[[Operator], Library]:
        """What gives the Libraries of an operator's steps, which are compiled side by side."""
        steps = () if operator.body is None else operator.body.operators.values()
        outcomes = {step.name: outcome for step, outcome in self.compile_all(steps, target)}

        def built(step: Operator) -> Library:
            outcome = outcomes[step.name]
            if isinstance(outcome, CompileError):
                raise outcome
            return outcome

        return built


def _generators() -> list[str]:
    """Every platform's code generator: they share nearly all that they import.

    What is not there when a child is forked, each child imports again: 40 ms an operator.
    """
    modules = (f"tapml_targets.{platform}.codegen" for platform in platform_names())
    return [module for module in modules if find_spec(module) is not None]


def operator_source(operator: Operator, target: Target) -> OperatorSource:
    """What the code generator of `target` is given: the function for its kind of platform.

    On one thread that is the CPU's: what TVM writes for a GPU may come with threads of its own.
    """
    serial = ("schedule", "one-thread") in target.options
    return OperatorSource(
        name=operator.name,
        function=operator.function_for("cpu" if serial else function_kind(target.platform)),
        parameters=operator.parameters,
        symbols=operator.symbols,
    )
