"""What a worker of Dask does: it runs some ranks of a run, and tells the others of a failure.

Bytes come and go, in the form of :mod:`tapml.isolate.frame`; nothing is pickled here.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import msgspec

from tapml.distributed.frameworks import READY, TORCH
from tapml.distributed.machines.tunnel import Gate, Tunnel, address_of
from tapml.distributed.machines.warm_pools import WarmPools
from tapml.isolate.death import GroupDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.frame import decode, encode
from tapml.isolate.pool import Pool
from tapml_targets.errors import SetupError, TapmlError
from tapml_targets.installed import package_version

VERSIONS: Final = ("tapml", "torch")
_POLL_SECONDS: Final = 0.05
# Ranks that lose the others raise by themselves; what still runs then is ended.
_GRACE_SECONDS: Final = 1.5
_TUNNELS: Final[dict[str, Tunnel]] = {}
# A run may close its pool, so no two use one.
_POOLS: Final[WarmPools[Environment]] = WarmPools(
    lambda key: Pool(TORCH.jobs, environment=key), alone=True
)


def packed(message: Any) -> bytes:
    """A message as bytes."""
    return b"".join(encode(message))


def unpacked(data: bytes) -> Any:
    """The message that :func:`packed` packed."""
    return decode(memoryview(data))


def get_ready(data: bytes) -> bytes:
    """Start this machine's tunnel and its warm processes, and say how others reach it.

    `versions` are those of :data:`VERSIONS`.
    """
    try:
        request = unpacked(data)
        gate = _tunnel().gate
        with _POOLS.lend(_environment(request["environment"])) as pool:
            pool.submit(READY).result()
    except TapmlError as error:
        return packed(_said(error))
    versions = {name: package_version(name) or "" for name in VERSIONS}
    return packed({"gate": list(gate), "versions": versions})


def choose_store(data: bytes) -> bytes:
    """A free port of the first rank's address, for the store of one run alone."""
    del data
    try:
        with socket.create_server((address_of(0), 0)) as free:
            return packed({"store": free.getsockname()[1]})
    except OSError as error:
        return packed(_said(SetupError(f"no port of {address_of(0)} is free: {error}")))


def run_part(data: bytes) -> bytes:
    """Run this machine's ranks of a run; the answer has their results, or how they failed."""
    request = unpacked(data)
    tunnel = _tunnel()
    gates = {int(rank): Gate(*gate) for rank, gate in request["gates"].items()}
    try:
        with tempfile.TemporaryDirectory(prefix="tapml-part-") as folder:
            return packed(_run_ranks(request, tunnel, gates, Path(folder)))
    except (OSError, TapmlError) as error:
        # The others would wait for these ranks until the deadline.
        _tell(tunnel, request["run"], set(gates.values()))
        return packed(_said(error if isinstance(error, TapmlError) else SetupError(str(error))))


def _run_ranks(
    request: Mapping[str, Any], tunnel: Tunnel, gates: Mapping[int, Gate], folder: Path
) -> dict[str, Any]:
    # Workers of one machine share its loopback: their ranks reach each other without a tunnel.
    away = {rank: gate for rank, gate in gates.items() if gate.host != tunnel.gate.host}
    for name, content in request["files"].items():
        target = folder / "job" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    flag, ways = folder / "failed", folder / "ways"
    with tunnel.run(request["run"], ways) as open_way:
        if 0 in away:
            open_way(address_of(0), request["store"], away[0])
        part = {
            "first": request["first"],
            "size": request["size"],
            "store": request["store"],
            "gates": {str(rank): list(gate) for rank, gate in away.items()},
            "flag": str(flag),
            "ways": str(ways),
        }
        payload = {
            **request["payload"],
            "job": str(folder / "job" / request["job"]),
            "part": part,
        }
        with _POOLS.lend(_environment(request["environment"])) as pool:
            future = pool.group(
                request["count"],
                TORCH.run,
                payload,
                folder=True,
                deadline_seconds=request["deadline"],
            )
            return _wait(future, tunnel, request["run"], flag, set(gates.values()), pool)


def _wait(
    future: Future[list[Any]],
    tunnel: Tunnel,
    run: str,
    flag: Path,
    others: set[Gate],
    pool: Pool,
) -> dict[str, Any]:
    """Wait for the ranks; `told` in the answer says whether another machine failed before."""
    told_at, told_others = 0.0, False
    cancelled = _cancellation()
    while not future.done():
        with contextlib.suppress(TimeoutError, TapmlError):
            future.result(_POLL_SECONDS)
        if not told_at and not flag.exists() and tunnel.failed(run):
            told_at = time.monotonic()
            flag.touch()
        if flag.exists() and not told_at and not told_others:
            told_others = True
            _tell(tunnel, run, others)
        if cancelled() or (told_at and time.monotonic() > told_at + _GRACE_SECONDS):
            pool.close()
    try:
        return {"results": future.result()}
    except GroupDiedError as error:
        if not told_at and not told_others:
            _tell(tunnel, run, others)
        cause = error.__cause__
        said = _said(cause) if isinstance(cause, TapmlError) else {}
        report = msgspec.json.encode(error.report)
        return {"report": report, "told": bool(told_at), **said}


def _tell(tunnel: Tunnel, run: str, others: set[Gate]) -> None:
    for gate in others:
        tunnel.tell(run, gate)


def _said(error: TapmlError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}


def _cancellation() -> Any:
    """A function that says whether nobody waits for this task any more."""
    from distributed import get_worker

    try:
        worker: Any = get_worker()
        key = worker.get_current_task()
    except ValueError:
        return lambda: False  # No worker of Dask runs this.

    def cancelled() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state in ("cancelled", "released", "forgotten")

    return cancelled


def _tunnel() -> Tunnel:
    """The tunnel of this process, with the certificates of its worker."""
    from distributed import get_worker
    from distributed.comm import get_address_host

    worker: Any = get_worker()
    if worker.address not in _TUNNELS:
        serving = dialling = None
        if worker.address.startswith("tls://"):
            serving = _context(worker.security.get_listen_args("worker"))
            dialling = _context(worker.security.get_connection_args("worker"))
        host = get_address_host(worker.address)
        _TUNNELS[worker.address] = Tunnel(host, serving, dialling)
    return _TUNNELS[worker.address]


def _context(arguments: Mapping[str, Any]) -> ssl.SSLContext:
    found: ssl.SSLContext = arguments["ssl_context"]
    return found


def _environment(given: Mapping[str, Any]) -> Environment:
    return Environment(variables=given["variables"], preload=tuple(given["preload"]))
