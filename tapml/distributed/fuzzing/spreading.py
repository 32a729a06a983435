"""Spreads the models of a campaign over the workers of a Dask cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tapml.distributed.cluster import RESOURCE, client_of, workers_of
from tapml.distributed.fuzzing.patching import JOB, write_patched
from tapml.distributed.machines.warm_pools import WarmPools

if TYPE_CHECKING:
    from tapml.isolate.pool import Pool


def _open(engines: tuple[str, ...]) -> Pool:
    from tapml.distributed.checking import open_pool

    return open_pool(engines)


_POOLS: Final = WarmPools(_open, alone=False)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A generated job and its settings, as they are sent to a worker.

    `patch` is the text of a file that the job loads last; empty for none.
    """

    name: str
    source: str
    patch: str
    engines: tuple[str, ...]
    worlds: tuple[int, ...]
    options: dict[str, tuple[str, ...]]
    deadline_seconds: float


def spread(address: str, cases: Sequence[Case]) -> Iterator[tuple[str, bytes | str]]:
    """Check all cases on the cluster's workers, each as it ends.

    Yields
    ------
    tuple
        The case's name, and the check in MessagePack, or why there is none.

    Raises
    ------
    InputError
        If the address is of another machine and not encrypted.
    SetupError
        If Dask is missing, or nobody answers there.
    """
    with client_of(address) as client:
        from distributed import as_completed

        counted = any(RESOURCE in each["resources"] for each in workers_of(client).values())
        futures: dict[Any, str] = {}
        for case in cases:
            needs = {RESOURCE: max(case.worlds)} if counted else None
            payload = msgspec.msgpack.encode(case)
            future = client.submit(
                check_case,
                payload,
                key=f"tapml-{case.name}",
                pure=False,
                resources=needs,
                retries=0,
            )
            futures[future] = case.name
        for future in as_completed(list(futures)):
            try:
                yield futures[future], future.result()
            except Exception as error:
                yield futures[future], f"its worker failed: {type(error).__name__}: {error}"


def check_case(payload: bytes) -> bytes:
    """Check one case; what a worker runs. Its pool stays warm for the next."""
    from tapml.distributed.checking import check

    case = msgspec.msgpack.decode(payload, type=Case)
    with (
        tempfile.TemporaryDirectory(prefix="tapml-case-") as place,
        _POOLS.lend(case.engines) as pool,
    ):
        folder = Path(place)
        (folder / JOB).write_text(case.source, encoding="utf-8")
        job = write_patched(folder, case.patch) if case.patch else folder / JOB
        found = check(
            job,
            worlds=case.worlds,
            engines=case.engines,
            options=case.options,
            deadline_seconds=case.deadline_seconds,
            pool=pool,
        )
    return msgspec.msgpack.encode(found)
