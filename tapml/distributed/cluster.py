"""A Dask cluster: which scheduler may be used, and how it is reached.

Dask pickles what it sends, so only bytes travel, and its pickles only within TLS or on this
machine: an address that is not loopback must begin with ``tls://``. Certificates are those of
Dask's own configuration (``distributed.comm.tls``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from tapml_targets.errors import InputError, SetupError

RESOURCE: Final = "ranks"
"""The resource of a worker that says how many ranks it may run at a time."""
_CONNECT_SECONDS: Final = 10


def check_address(address: str) -> None:
    """Raise InputError unless an address is within TLS or of this machine."""
    parts = urlsplit(address)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("tcp", "tls") or not parts.hostname or not port:
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


@contextmanager
def client_of(address: str) -> Iterator[Any]:
    """A client of the scheduler, closed after the block.

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
    import dask.config as untyped_configuration
    import distributed as untyped

    distributed: Any = untyped
    configuration: Any = untyped_configuration
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS)
    except (OSError, TimeoutError, TypeError) as error:
        # A TypeError says that TLS is asked for and no certificates are configured.
        raise SetupError(f"no scheduler of Dask answers at {address}: {error}") from error
    # Dask warns of what is large, and advises to load it elsewhere: a job's weights are sent.
    with (
        client,
        configuration.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}),
    ):
        yield client


def workers_of(client: Any) -> Mapping[str, Mapping[str, Any]]:
    """What the scheduler knows of each worker, by the worker's address."""
    found: Mapping[str, Mapping[str, Any]] = client.scheduler_info(n_workers=-1)["workers"]
    return found
