"""Spreads the models of a campaign over the workers of a Dask cluster.

Dask pickles what it sends, so only bytes travel, and its pickles only within TLS or on this
machine: an address that is not loopback must begin with ``tls://``. Certificates are those of
Dask's own configuration (``distributed.comm.tls``).
"""

from __future__ import annotations

import ipaddress
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from tapml.distributed.fuzzing.patching import JOB, write_patched
from tapml_targets.errors import InputError, SetupError

if TYPE_CHECKING:
    from tapml.isolate.pool import Pool

RESOURCE: Final = "ranks"
"""The resource of a worker that says how many ranks it may run at a time."""
_CONNECT_SECONDS: Final = 10
_WARM: Final[dict[tuple[str, ...], Pool]] = {}


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


def check_address(address: str) -> None:
    """Raise InputError unless an address is within TLS or of this machine."""
    parts = urlsplit(address)
    if parts.scheme not in ("tcp", "tls") or not parts.hostname or not parts.port:
        raise InputError(
            f"a scheduler of Dask is tcp://127.0.0.1:8786 or tls://HOST:8786, got {address!r}"
        )
    try:
        here = ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        here = parts.hostname == "localhost"
    if parts.scheme == "tcp" and not here:
        raise InputError(
            f"{address} is another machine and is not encrypted: start scheduler and workers with "
            "TLS certificates, and give tls://HOST:PORT"
        )


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
    check_address(address)
    if find_spec("distributed") is None:
        raise SetupError("this needs Dask: pip install 'tapml[dask]'")
    import distributed as untyped

    distributed: Any = untyped

    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS)
    except (OSError, TimeoutError) as error:
        raise SetupError(f"no scheduler of Dask answers at {address}: {error}") from error
    with client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        counted = any(RESOURCE in each["resources"] for each in workers)
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
        for future in distributed.as_completed(list(futures)):
            try:
                yield futures[future], future.result()
            except Exception as error:
                yield futures[future], f"its worker failed: {type(error).__name__}: {error}"


def check_case(payload: bytes) -> bytes:
    """Check one case; what a worker runs. Its pool stays warm for the next."""
    from tapml.distributed.checking import check, open_pool

    case = msgspec.msgpack.decode(payload, type=Case)
    if case.engines not in _WARM:
        _WARM[case.engines] = open_pool(case.engines)
    with tempfile.TemporaryDirectory(prefix="tapml-case-") as place:
        folder = Path(place)
        (folder / JOB).write_text(case.source, encoding="utf-8")
        job = write_patched(folder, case.patch) if case.patch else folder / JOB
        found = check(
            job,
            worlds=case.worlds,
            engines=case.engines,
            options=case.options,
            deadline_seconds=case.deadline_seconds,
            pool=_WARM[case.engines],
        )
    return msgspec.msgpack.encode(found)
