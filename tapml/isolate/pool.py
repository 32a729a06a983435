"""Jobs, workers and groups in child processes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final, Self

from tapml.isolate.dispatch import Dispatcher
from tapml.isolate.endpoints import Call, new_call
from tapml.isolate.environment import Environment
from tapml.isolate.group import Group
from tapml.isolate.worker import Worker
from tapml_targets.errors import InputError, TapmlError

DEFAULT_DEADLINE_SECONDS: Final = 120.0
_JOB: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Pool:
    """Runs registered jobs in child processes; a context manager.

    The first job of an environment starts its server, which imports slow modules once and forks a
    child for every job, worker and group member. Jobs take and return plain data and arrays, see
    :func:`tapml.isolate.frame.encode`. Arrays are read when the job starts: leave them unchanged
    until then. All processes end with the pool, even if the pool's process is killed.

    Futures are resolved on the pool's thread: a callback must not wait for another future.

    Parameters
    ----------
    jobs
        Functions that may run, as ``package.module:function``. Children accept no other name.
    workers
        Number of jobs to run in parallel; default: the processors this process may use. Workers
        and groups do not count: they start at once.
    deadline_seconds
        Default time limit of a job, after which its process is killed.
    environment
        Default environment of jobs.

    Raises
    ------
    InputError
        If a job's name has another form, or `workers` is less than 1.

    Examples
    --------
    >>> jobs = ["math:factorial", "collections:Counter", "operator:getitem", "builtins:getattr"]
    >>> with Pool(jobs) as pool:
    ...     pool.submit("math:factorial", 5).result()
    ...     with pool.worker("collections:Counter", "banana") as counted:
    ...         counted.call("operator:getitem", "a")
    ...     pool.group(3, "builtins:getattr", "rank").result()
    120
    3
    [0, 1, 2]
    """

    def __init__(
        self,
        jobs: Iterable[str],
        *,
        workers: int | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        environment: Environment | None = None,
    ) -> None:
        self._jobs = frozenset(jobs)
        for job in self._jobs:
            if not _JOB.fullmatch(job):
                raise InputError(f"a job name must be package.module:function, got {job!r}")
        if workers is not None and workers < 1:
            raise InputError(f"a pool needs at least one worker, got {workers}")
        self.workers = workers or _processors()
        self.deadline_seconds = deadline_seconds
        self._environment = environment or Environment()
        self._dispatcher = Dispatcher(sorted(self._jobs), self.workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, environment: Environment | None = None) -> None:
        """Start the environment's server, without waiting for it."""
        self._dispatcher.do(lambda: self._warm_up(environment or self._environment))

    def submit(
        self,
        job: str,
        payload: Any = None,
        *,
        environment: Environment | None = None,
        deadline_seconds: float | None = None,
    ) -> Future[Any]:
        """Run ``job(payload)`` in a new process.

        Parameters
        ----------
        job
            One of the pool's jobs.
        payload
            Plain data and arrays.
        environment
            Default: the pool's.
        deadline_seconds
            Time limit from the job's start; default: the pool's.

        Returns
        -------
        Future
            The result, the TapmlError that the job raised, or ChildDiedError.

        Raises
        ------
        InputError
            If the job is unknown, the payload cannot be sent, or the pool is closed.
        """
        call = self._call(job, payload, deadline_seconds)
        self._dispatcher.do(lambda: self._dispatcher.submit(environment or self._environment, call))
        return call.future

    def worker(
        self,
        factory: str,
        payload: Any = None,
        *,
        environment: Environment | None = None,
        deadline_seconds: float | None = None,
    ) -> Worker:
        """Start a process that keeps the result of ``factory(payload)``, without waiting for it.

        Parameters
        ----------
        factory
            One of the pool's jobs; its result stays in the process and may be of any type.
        payload, environment
            As for :meth:`submit`.
        deadline_seconds
            Time limit of the factory, and default time limit of calls.

        Returns
        -------
        Worker
            If the factory fails, its calls raise the factory's error.

        Raises
        ------
        InputError
            As :meth:`submit` does.
        """
        call = self._call(factory, payload, deadline_seconds, create=True)
        return Worker(self._dispatcher, environment or self._environment, call, self._jobs)

    def group(
        self,
        size: int,
        job: str,
        payload: Any = None,
        *,
        port: bool = False,
        folder: bool = False,
        environment: Environment | None = None,
        deadline_seconds: float | None = None,
    ) -> Future[list[Any]]:
        """Run ``job(member, payload)`` in `size` processes that start and end together.

        Parameters
        ----------
        size
            The number of members, the "world size".
        job
            One of the pool's jobs; its first argument is a
            :class:`~tapml.isolate.member.Member`, which has the rank.
        payload, environment, deadline_seconds
            As for :meth:`submit`; the same for all members.
        port, folder
            Whether the members need a free port of 127.0.0.1, or a folder, to find each other.
            Another program may take the port before a member does; a folder has no such race.

        Returns
        -------
        Future
            The results by rank once all members have exited, or GroupDiedError.

        Raises
        ------
        InputError
            As :meth:`submit` does, and for a size below 1.
        """
        if size < 1:
            raise InputError(f"a group needs at least one member, got {size}")
        call = self._call(job, payload, deadline_seconds)
        group = Group(self._dispatcher, size, call)
        self._dispatcher.do(
            lambda: group.start(environment or self._environment, port=port, folder=folder)
        )
        return call.future

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._dispatcher.closed

    def close(self) -> None:
        """Kill every process. Pending calls fail with ChildDiedError or GroupDiedError."""
        self._dispatcher.close()

    def _call(self, job: str, payload: Any, seconds: float | None, *, create: bool = False) -> Call:
        return new_call(job, payload, seconds or self.deadline_seconds, self._jobs, create=create)

    def _warm_up(self, environment: Environment) -> None:
        with contextlib.suppress(TapmlError):  # The first job raises it again.
            self._dispatcher.warm_up(environment)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
