"""Compiles the target's kernels in the background, in the order the session will ask for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from tapml.compiler.compiler import Compiler
from tapml.graph.plan import Operator
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash
from tapml_targets.target import Target


class CompileAhead:
    """Kernels of all operators, on their way.

    The compilers are child processes, which start when the first operator is not in the cache; this
    thread only collects what they return. A Library is read from its bytes when somebody looks into
    it: a resumed session knows hundreds of them by their hash alone.

    Attributes
    ----------
    seconds
        From the start to the latest kernel that came back.
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
        """Content hash of the operator's Library, as soon as it is there.

        Raises
        ------
        CompileError
            If it could not be compiled, or the compiler died or hung.
        """
        return library_hash(self._futures[operator].result())

    def library(self, operator: str) -> Library:
        """The operator's Library, as soon as it is there.

        Raises
        ------
        CompileError
            If it could not be compiled, or the compiler died or hung.
        """
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
