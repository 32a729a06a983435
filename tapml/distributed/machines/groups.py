"""Places the ranks of each run on the workers of a Dask cluster, and puts their answers together.

One device, and all else that is one process, stays here. Runs go one after the other: the parts of
two runs could wait for each other's places.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from tapml.distributed.cluster import RESOURCE, client_of, workers_of
from tapml.distributed.machines.part import (
    VERSIONS,
    choose_store,
    get_ready,
    packed,
    run_part,
    unpacked,
)
from tapml.isolate.death import GroupDiedError, GroupReport
from tapml.isolate.endpoints import to_error
from tapml.isolate.environment import Environment
from tapml.isolate.imported_files import imported_beside
from tapml.isolate.pool import Pool
from tapml_targets.errors import SetupError, TapmlError
from tapml_targets.installed import package_version

# Importing PyTorch in a worker's processes takes seconds, on a busy machine many.
_READY_SECONDS: Final = 300.0
_LATE_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Share:
    """Consecutive ranks of a run, from `first`, and the worker that runs them."""

    worker: str
    first: int
    count: int


def shares_of(world: int, room: Mapping[str, int | None]) -> list[Share]:
    """Which worker runs which ranks: as even as their rooms allow, and in order.

    `room` is how many ranks each worker may run, None for any number.

    >>> shares_of(4, {"a": None, "b": None})
    [Share(worker='a', first=0, count=2), Share(worker='b', first=2, count=2)]
    >>> [each.count for each in shares_of(5, {"a": 1, "b": 4, "c": 4})]
    [1, 2, 2]

    Raises
    ------
    SetupError
        If they have no room for all ranks.
    """
    limits = {name: world if each is None else each for name, each in room.items()}
    if sum(limits.values()) < world:
        raise SetupError(
            f"{world} ranks have no room: {len(room)} worker{'s' * (len(room) != 1)} may run "
            f"{sum(limits.values())}; start more, with a larger --resources {RESOURCE}=N"
        )
    counts = dict.fromkeys(room, 0)
    for _ in range(world):
        free = [name for name in counts if counts[name] < limits[name]]
        counts[min(free, key=lambda name: counts[name])] += 1
    found, first = [], 0
    for name, count in counts.items():
        if count:
            found.append(Share(name, first, count))
            first += count
    return found


class MachineGroups:
    """Starts groups as :meth:`tapml.isolate.pool.Pool.group` does, the larger ones on workers."""

    def __init__(self, pool: Pool, client: Any, job: Path) -> None:
        self._pool, self._client, self._job = pool, client, job
        self._queue = ThreadPoolExecutor(1, thread_name_prefix="tapml-machines")
        self._ready: dict[tuple[str, str], dict[str, Any]] = {}
        self._tasks: list[Any] = []

    def group(
        self,
        size: int,
        job: str,
        payload: dict[str, Any],
        *,
        folder: bool,
        environment: Environment,
        deadline_seconds: float,
    ) -> Future[list[Any]]:
        """Run the ranks of a job; the results by rank, or GroupDiedError."""
        if size == 1:
            return self._pool.group(
                size,
                job,
                payload,
                folder=folder,
                environment=environment,
                deadline_seconds=deadline_seconds,
            )
        return self._queue.submit(self._run, size, job, payload, environment, deadline_seconds)

    def close(self) -> None:
        """Give up what is not done: the workers then end its ranks."""
        # Where the scheduler is gone, its client raises errors of many classes.
        with contextlib.suppress(Exception):
            self._client.cancel(self._tasks)
        self._queue.shutdown(wait=False, cancel_futures=True)

    def _run(
        self,
        size: int,
        job: str,
        payload: dict[str, Any],
        environment: Environment,
        deadline_seconds: float,
    ) -> list[Any]:
        try:
            shares = shares_of(size, self._room())
            given = {"variables": dict(environment.variables), "preload": list(environment.preload)}
            told = self._get_ready([each.worker for each in shares], given)
            answers = self._ask(shares, told, payload, given, deadline_seconds)
        except TapmlError as error:
            self._ready.clear()  # A worker may be another process now, at the same address.
            raise _not_started(size, job, error) from error
        failed = [
            (share, each)
            for share, each in zip(shares, answers, strict=True)
            if "results" not in each
        ]
        if not failed:
            return [result for each in answers for result in each["results"]]
        self._ready.clear()
        for share, each in failed:
            if "report" not in each:
                cause = to_error(each)
                raise _not_started(size, job, SetupError(f"{share.worker}: {cause}")) from cause
        raise _put_together(size, shares, answers)

    def _room(self) -> dict[str, int | None]:
        workers = workers_of(self._client)
        if not workers:
            raise SetupError("the scheduler has no workers: start one with dask worker")
        counted = any(RESOURCE in each["resources"] for each in workers.values())
        return {
            name: int(each["resources"].get(RESOURCE, 0)) if counted else None
            for name, each in sorted(workers.items())
        }

    def _get_ready(
        self, workers: list[str], environment: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """What each worker says of itself, once for each environment."""
        keys = [(worker, repr(environment)) for worker in workers]
        data = packed({"environment": environment})
        waiting = {
            key: self._submit(get_ready, data, key[0], {}, f"tapml-ready-{uuid.uuid4().hex}")
            for key in keys
            if key not in self._ready
        }
        for key, future in waiting.items():
            worker, answer = key[0], self._result(future, key[0], _READY_SECONDS)
            if "error" in answer:
                raise SetupError(f"{worker}: {answer['message']}")
            for name in VERSIONS:
                here, there = package_version(name) or "", answer["versions"][name]
                if here != there:
                    raise SetupError(
                        f"{worker} has {name} {there or 'not installed'}, this machine {here}: "
                        "install the same"
                    )
            self._ready[key] = answer
        return [self._ready[key] for key in keys]

    def _ask(
        self,
        shares: list[Share],
        told: list[dict[str, Any]],
        payload: dict[str, Any],
        environment: Mapping[str, Any],
        deadline_seconds: float,
    ) -> list[dict[str, Any]]:
        run, first = uuid.uuid4().hex, shares[0].worker
        # Chosen for each run: another program may have taken the port of the run before.
        chosen = self._submit(choose_store, b"", first, {}, f"tapml-store-{run}")
        store = self._result(chosen, first, _LATE_SECONDS)
        if "error" in store:
            raise SetupError(f"{first}: {store['message']}")
        counted = any(each is not None for each in self._room().values())
        gates = {
            str(rank): each["gate"]
            for share, each in zip(shares, told, strict=True)
            for rank in range(share.first, share.first + share.count)
        }
        files = {self._job.name: self._job} | imported_beside(self._job)
        common = {
            "run": run,
            "size": len(gates),
            "store": store["store"],
            "files": {name: path.read_bytes() for name, path in files.items()},
            "job": self._job.name,
            "payload": payload,
            "environment": environment,
            "deadline": deadline_seconds,
        }
        futures = []
        for share in shares:
            own = range(share.first, share.first + share.count)
            others = {rank: gate for rank, gate in gates.items() if int(rank) not in own}
            data = packed({**common, "first": share.first, "count": share.count, "gates": others})
            needs = {RESOURCE: share.count} if counted else {}
            name = f"tapml-{run}-{share.first}"
            futures.append(self._submit(run_part, data, share.worker, needs, name))
        self._tasks[:] = futures
        return [
            self._result(future, share.worker, deadline_seconds + _LATE_SECONDS)
            for future, share in zip(futures, shares, strict=True)
        ]

    def _submit(
        self, job: Any, data: bytes, worker: str, needs: Mapping[str, int], key: str
    ) -> Any:
        try:
            return self._client.submit(
                job,
                data,
                key=key,
                pure=False,
                retries=0,
                workers=[worker],
                allow_other_workers=False,
                resources=needs or None,
            )
        except Exception as error:
            raise SetupError(f"the scheduler takes no work: {_said(error)}") from error

    def _result(self, future: Any, worker: str, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while True:
            try:
                found: dict[str, Any] = unpacked(future.result(_POLL_SECONDS))
            except TimeoutError as error:
                if future.status == "error":
                    raise SetupError(f"the worker {worker} failed: {_said(error)}") from error
                # A task that only a lost worker may run waits for ever.
                if worker not in workers_of(self._client):
                    raise SetupError(f"the worker {worker} was lost") from None
                if time.monotonic() > until:
                    raise SetupError(f"the worker {worker} gives no answer") from None
            except Exception as error:
                if future.status == "cancelled":  # Its client has lost the scheduler.
                    raise SetupError("the scheduler was lost") from error
                raise SetupError(f"the worker {worker} failed: {_said(error)}") from error
            else:
                return found


@contextmanager
def machine_groups(pool: Pool, address: str, job: Path) -> Iterator[MachineGroups]:
    """Groups on the workers of a scheduler while the block works; see :func:`client_of`."""
    with client_of(address) as client:
        groups = MachineGroups(pool, client, job)
        try:
            yield groups
        finally:
            groups.close()


def _said(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _not_started(size: int, job: str, error: TapmlError) -> GroupDiedError:
    """What a group raises whose members cannot be started."""
    report = GroupReport(job, size, None, f"failed: {error}", None, (), ("",) * size)
    failed = GroupDiedError(report)
    failed.__cause__ = error if isinstance(error, SetupError) else SetupError(str(error))
    return failed


def _put_together(size: int, shares: list[Share], answers: list[dict[str, Any]]) -> GroupDiedError:
    """The report of all ranks, by that of the part that failed first: no other told it."""
    reports = {
        share: msgspec.json.decode(each["report"], type=GroupReport)
        for share, each in zip(shares, answers, strict=True)
        if "report" in each
    }
    said = {share: each for share, each in zip(shares, answers, strict=True) if share in reports}

    def place(share: Share) -> tuple[bool, bool, bool]:
        report = reports[share]
        # As in one group: who dies has not lost the others, who raises perhaps has.
        died = report.death is not None and report.culprit is not None
        return not died, said[share]["told"], report.culprit is None

    first = min(reports, key=place)
    report, tails, answered = reports[first], [""] * size, []
    for share in shares:
        if share in reports:
            tails[share.first : share.first + share.count] = reports[share].tails
            answered += [share.first + rank for rank in reports[share].answered]
        else:
            answered += range(share.first, share.first + share.count)
    culprit = None if report.culprit is None else first.first + report.culprit
    whole = replace(
        report, size=size, culprit=culprit, answered=tuple(answered), tails=tuple(tails)
    )
    failed = GroupDiedError(whole)
    if "error" in said[first]:
        failed.__cause__ = to_error(said[first])
    return failed
