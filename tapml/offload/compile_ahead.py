"""Compiles the target's kernels in the background, in the order the session needs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from tapml.compiler.compiler import Compiler
from tapml.plan.graph_plan import Operator
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash
from tapml_targets.target import Target


class CompileAhead:
    """The kernels of all operators, compiled in the background.

    Child processes compile; they start with the first operator that is not in the cache. A thread
    collects the results. A Library is decoded on first access: a resumed session only needs the
    hashes of most.

    Attributes
    ----------
    seconds
        Time from the start to the latest compiled kernel.
    """

    def __init__(self, compiler: Compiler, operators: Sequence[Operator], target: Target) -> None:
        self._operators = {operator.name: operator for operator in operators}
        self._futures: dict[str, Future[bytes]] = {name: Future() for name in self._operators}
        self._libraries: dict[str, Library] = {}
        self._compiler = compiler
        self._target = target
        self._thread = threading.Thread(target=self._collect, name="compile-ahead", daemon=True)
        self._started = time.monotonic()
        self.seconds = 0.0
        self._thread.start()

    def kernel(self, operator: str) -> str:
        """Wait for the operator's Library and return its content hash.

        Raises
        ------
        CompileError
            If it could not be compiled, or the compiler died or hung.
        """
        return library_hash(self._futures[operator].result())

    def library(self, operator: str) -> Library:
        """Wait for the operator's Library. Raises CompileError as :meth:`kernel` does."""
        packed = self._futures[operator].result()
        if operator not in self._libraries:
            self._libraries[operator] = self._compiler.read(
                self._operators[operator], self._target, packed
            )
        return self._libraries[operator]

    def close(self) -> None:
        """Wait for the collecting thread; call it after the compiler is closed."""
        self._thread.join()

    def _collect(self) -> None:
        try:
            operators = list(self._operators.values())
            for operator, result in self._compiler.pack_all(operators, self._target):
                future = self._futures[operator.name]
                if isinstance(result, CompileError):
                    future.set_exception(result)
                else:
                    future.set_result(result)
                self.seconds = time.monotonic() - self._started
        except BaseException as error:
            for future in self._futures.values():
                if not future.done():
                    future.set_exception(error)
