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
from tapml_targets.target import Target


class CompileAhead:
    """Kernels of all operators, on their way.

    The compilers are child processes; this thread only collects what they return.

    Attributes
    ----------
    seconds
        From the start to the latest kernel that came back.
    """

    def __init__(self, compiler: Compiler, operators: Sequence[Operator], target: Target) -> None:
        self._futures: dict[str, Future[Library]] = {o.name: Future() for o in operators}
        self._compiler = compiler
        self._operators = operators
        self._target = target
        self._thread = threading.Thread(target=self._collect, name="compile-ahead", daemon=True)
        self._started = time.monotonic()
        self.seconds = 0.0
        self._thread.start()

    def library(self, operator: str) -> Library:
        """The operator's Library, as soon as it is there.

        Raises
        ------
        CompileError
            If it could not be compiled, or the compiler died or hung.
        """
        return self._futures[operator].result()

    def close(self) -> None:
        """Wait for the collecting thread; call it after the compiler is closed."""
        self._thread.join()

    def _collect(self) -> None:
        try:
            for operator, result in self._compiler.compile_all(self._operators, self._target):
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
