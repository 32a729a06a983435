"""Compiles operators for targets: in isolated children, in parallel, cached on disk.

An operator whose fused kernel exceeds the target's limits is refined (:mod:`.refined`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from tapml.compiler.cache import LibraryCache, joint_hash, library_key
from tapml.compiler.job import COMPILE, to_payload
from tapml.compiler.refined import kernel_limit_violations, refined
from tapml.compiler.unfused import is_fused
from tapml.isolate.death import ChildDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml.plan.graph_plan import Operator
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import (
    CompileError,
    CompilerFailedError,
    ProtocolError,
    SetupError,
    TapmlError,
)
from tapml_targets.installed import install_hint
from tapml_targets.library import Library
from tapml_targets.library_format import pack, unpack
from tapml_targets.platforms import (
    check_platform,
    function_kind,
    own_platforms,
    platform_package,
)
from tapml_targets.target import Target

DEFAULT_DEADLINE_SECONDS: Final = 120.0

Progress = Callable[[int, int, Operator, "Library | CompileError"], None]


class Compiler:
    """Compiles operators for targets; a context manager.

    A compilation that crashes or hangs fails only its operator: the CompileError names the signal
    or deadline and includes the end of the compiler's output.

    Parameters
    ----------
    cache_dir
        Folder of compiled Libraries; None for the user's cache.
    workers
        Parallel compilations; None for the number of available processors.
    deadline_seconds
        Time after which a compilation is killed.

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
            [COMPILE],
            workers=workers,
            deadline_seconds=deadline_seconds,
            environment=Environment(
                preload=("tapml.compiler.job", "tapml_targets.codegen.lowering", *_generators()),
                # tvm-ffi imports torch if it is installed, which triples TVM's load time.
                without=("torch",),
            ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the compile processes."""
        self._pool.close()

    def warm_up(self) -> None:
        """Start to load the compiler in the background, to speed up the first compilation."""
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
        target
            Platform, options and limits.
        progress
            Called with (done, total, operator, outcome) as each result is yielded.

        Yields
        ------
        tuple
            Each operator with its Library or CompileError, in the given order.
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
        """Compile operators in parallel and yield packed Libraries; cached ones are not decoded.

        Yields
        ------
        tuple
            Each operator with the bytes for :meth:`read`, or with its CompileError.
        """
        check_platform(target.platform)
        work = [(operator, self._begin(operator, target)) for operator in operators]
        for operator, begun in work:
            found = begun if isinstance(begun, bytes) else self._end(operator, target, *begun)
            if isinstance(found, bytes):
                found = self._within_limits(operator, target, found)
            yield operator, found

    def read(self, operator: Operator, target: Target, packed: bytes) -> Library:
        """Decode a Library from :meth:`pack_all`.

        Raises
        ------
        CompileError
            If the cached entry is not a valid Library, and compiling it again fails.
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
        return key, self._pool.submit(COMPILE, to_payload(source, target))

    def _end(
        self, operator: Operator, target: Target, key: str, future: Future[Any]
    ) -> bytes | CompileError:
        try:
            packed: bytes = future.result()
            unpack(packed)
        except CompileError as error:
            return error
        except ChildDiedError as error:
            failure = CompilerFailedError(
                f"the compiler {error.report.reason} while compiling operator {operator.name!r} "
                f"for {target.platform}; keep the operator on the source, or try another "
                f"schedule. Its last output:\n{error.report.stderr_tail or '(nothing)'}"
            )
            failure.__cause__ = error
            return failure
        except TapmlError as error:
            failure = CompilerFailedError(f"operator {operator.name!r}: {error}")
            failure.__cause__ = error
            return failure
        self._cache.put(key, packed)
        return packed

    def _within_limits(self, operator: Operator, target: Target, packed: bytes) -> bytes:
        """The Library, or the refined one if its fused kernel exceeds the target's limits."""
        if not is_fused(operator):
            return packed
        try:
            violations = kernel_limit_violations(operator, unpack(packed), target.limits)
        except ProtocolError:
            # `read` compiles it again.
            return packed
        if not violations:
            return packed
        fused = library_key(operator_source(operator, target), target)
        key = joint_hash([fused, "refined", *map(str, violations)])
        kept = self._cache.get(key)
        if kept is not None:
            return pack(kept)
        made = refined(operator, violations, target.limits, self._steps(operator, target))
        if made is None:
            return packed
        packed = pack(made)
        self._cache.put(key, packed)
        return packed

    def _steps(self, operator: Operator, target: Target) -> Callable[[Operator], Library]:
        """A function that returns the Libraries of an operator's steps, compiled in parallel."""
        steps = () if operator.body is None else operator.body.operators.values()
        outcomes = {step.name: outcome for step, outcome in self.compile_all(steps, target)}

        def built(step: Operator) -> Library:
            outcome = outcomes[step.name]
            if isinstance(outcome, CompileError):
                raise outcome
            return outcome

        return built


def _generators() -> list[str]:
    """Our code generators, to load before forking: they share most imports.

    A module that is not loaded at the fork is imported by every child: 40 ms per operator. One of
    another distribution is, so that a fault in it fails its own jobs alone.
    """
    modules = (f"{platform_package(platform)}.codegen" for platform in own_platforms())
    return [module for module in modules if find_spec(module) is not None]


def operator_source(operator: Operator, target: Target) -> OperatorSource:
    """The input of `target`'s code generator: the function for its platform kind.

    For a single thread that is the CPU function, because TVM's GPU functions may bind threads.
    """
    serial = ("schedule", "one-thread") in target.options
    return OperatorSource(
        name=operator.name,
        function=operator.function_for("cpu" if serial else function_kind(target.platform)),
        parameters=operator.parameters,
        symbols=operator.symbols,
    )
