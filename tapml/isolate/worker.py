"""A process that keeps its state between calls."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Self

from tapml.isolate.death import ChildDiedError, DeathReport
from tapml.isolate.dispatch import Dispatcher
from tapml.isolate.endpoints import Call, Child, Owner, new_call, to_error
from tapml.isolate.environment import Environment
from tapml_targets.errors import InputError, TapmlError


class Worker(Owner):
    """One process that keeps the result of its factory; a context manager.

    :meth:`tapml.isolate.pool.Pool.worker` makes it. Calls run in the order they were submitted.
    If the process dies, every later call raises the ChildDiedError with the reason.
    """

    def __init__(
        self, dispatcher: Dispatcher, environment: Environment, factory: Call, jobs: frozenset[str]
    ) -> None:
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._factory = factory
        self._calls: deque[Call] = deque([factory])
        self._child: Child | None = None
        self._error: TapmlError | None = None
        self._exited = threading.Event()
        dispatcher.do(lambda: self._start(environment))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, job: str, payload: Any = None, *, deadline_seconds: float | None = None) -> Any:
        """Run ``job(kept, payload)`` in the process and wait for its result.

        Raises
        ------
        TapmlError
            If the job or the factory raised it. A job's error does not end the process.
        ChildDiedError
            If the process died, or was killed because the call missed its deadline.
        """
        return self.submit(job, payload, deadline_seconds=deadline_seconds).result()

    def submit(
        self, job: str, payload: Any = None, *, deadline_seconds: float | None = None
    ) -> Future[Any]:
        """Run ``job(kept, payload)`` in the process, after all earlier calls.

        Parameters
        ----------
        job
            One of the pool's jobs.
        payload
            Plain data and arrays, see :func:`tapml.isolate.frame.encode`.
        deadline_seconds
            Time limit from the call's start; default: the worker's.

        Returns
        -------
        Future
            The result, or an error as :meth:`call` raises it.

        Raises
        ------
        InputError
            If the job is unknown, the payload cannot be sent, or the pool is closed.
        """
        call = new_call(job, payload, deadline_seconds or self._factory.seconds, self._jobs)
        self._dispatcher.do(lambda: self._append(call))
        return call.future

    def close(self) -> None:
        """Kill the process and wait until it has exited. Pending calls fail."""
        # A closed pool raises InputError, but has already killed the process.
        with contextlib.suppress(InputError):
            self._dispatcher.do(self._stop)
            self._exited.wait()

    # The methods below run on the pool's thread.

    def _start(self, environment: Environment) -> None:
        try:
            self._child = self._dispatcher.start(environment, self)
        except TapmlError as error:
            self._fail(error)
            self._exited.set()
        else:
            self._next()

    def _append(self, call: Call) -> None:
        self._calls.append(call)
        if self._error is not None:
            self._fail(self._error)
        elif len(self._calls) == 1:
            self._next()

    def _next(self) -> None:
        if self._calls and self._child is not None:
            try:
                self._dispatcher.send(self._child, self._calls[0])
            except TapmlError as error:
                self._fail(error)

    def _stop(self) -> None:
        if self._error is None:
            self._fail(ChildDiedError(DeathReport(self._factory.job, closed=True)))
        if self._child is not None:
            self._dispatcher.kill(self._child)

    def _fail(self, error: TapmlError) -> None:
        self._error = error
        while self._calls:
            self._calls.popleft().future.set_exception(error)

    def on_answer(self, child: Child, call: Call, answer: dict[str, Any]) -> None:
        """Resolve a call and send the next one."""
        if self._error is not None:
            return
        self._calls.popleft()
        if "result" in answer:
            call.future.set_result(answer["result"])
            self._next()
            return
        error = to_error(answer)
        call.future.set_exception(error)
        if call is self._factory or child.channel.closed:
            self._fail(error)
            self._dispatcher.kill(child)
        else:
            self._next()

    def on_exit(self, child: Child, report: DeathReport) -> None:
        """Fail pending and later calls."""
        if self._error is None:
            job = self._calls[0].job if self._calls else self._factory.job
            self._fail(ChildDiedError(replace(report, job=job)))
        self._exited.set()
