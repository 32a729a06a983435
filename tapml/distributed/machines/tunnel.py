"""Carries the connections of ranks between machines, within TLS.

Gloo and PyTorch's store have no encryption, so ranks listen on loopback only: each on an address of
its own, which is the same on every machine. A machine listens on the addresses of the others' ranks
and carries what connects there to the rank's machine. Ranks so connect as if they were on one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from tapml_targets.errors import SetupError

NETWORK: Final = ipaddress.ip_network("127.77.0.0/16")
"""Addresses of ranks; a tunnel connects to no other."""
_BLOCK_BYTES: Final = 1 << 16
_SECONDS: Final = 10.0
# Runs that are said to have failed and did not end here since: they may not have begun yet.
_MOST_FAILED: Final = 64

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Gate(NamedTuple):
    """Where a machine's tunnel listens."""

    host: str
    port: int


def address_of(rank: int) -> str:
    """The address of a rank.

    >>> address_of(0), address_of(300)
    ('127.77.0.1', '127.77.1.45')
    """
    return str(NETWORK[rank + 1])


class Tunnel:
    """One machine's end: it takes connections from the tunnels of others, and opens ways to them.

    Parameters
    ----------
    host
        An address of this machine that the others reach.
    serving, dialling
        TLS of connections that it takes and makes; None for none, which needs loopback.

    Raises
    ------
    SetupError
        If it cannot listen there, or would listen without TLS on another address than loopback.
    """

    def __init__(
        self, host: str, serving: ssl.SSLContext | None, dialling: ssl.SSLContext | None
    ) -> None:
        if serving is None and not ipaddress.ip_address(host).is_loopback:
            raise SetupError(
                f"ranks on {host} need TLS: start scheduler and workers with certificates "
                "(distributed.comm.tls)"
            )
        self._dialling = dialling
        self._failed: dict[str, None] = {}
        self._ways: dict[tuple[str, int], Gate] = {}
        self._opening = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="tunnel", daemon=True).start()
        try:
            server = self._do(asyncio.start_server(self._take, host, 0, ssl=serving))
        except OSError as error:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise SetupError(
                f"no tunnel can listen on {host}: {error.strerror or error}"
            ) from error
        self.gate = Gate(host, server.sockets[0].getsockname()[1])

    @contextmanager
    def run(self, name: str, socket: Path) -> Iterator[Callable[[str, int, Gate], None]]:
        """Open ways for a run while the block works; gives the function that opens one.

        Its ranks ask for one at the Unix socket, with a line ``ADDRESS PORT HOST PORT``.
        """
        servers: dict[tuple[str, int], asyncio.Server] = {}

        def open_way(address: str, port: int, gate: Gate) -> None:
            self._do(self._open(address, port, gate, servers))

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            address, port, host, gate = (await reader.readline()).decode().split()
            try:
                await self._open(address, int(port), Gate(host, int(gate)), servers)
                writer.write(b"open\n")
            except OSError as error:
                writer.write(f"{error}\n".encode())
            await _close(writer)

        control = self._do(asyncio.start_unix_server(answer, socket))
        try:
            yield open_way
        finally:
            self._failed.pop(name, None)
            self._loop.call_soon_threadsafe(self._end, control, servers)

    def failed(self, run: str) -> bool:
        """Whether another machine has said that a run failed."""
        return run in self._failed

    def tell(self, run: str, gate: Gate) -> None:
        """Say to another machine that a run failed, if it can be reached."""
        with contextlib.suppress(OSError, TimeoutError):
            self._do(self._tell(run, gate))

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SECONDS)

    async def _dial(self, gate: Gate, line: str) -> tuple[asyncio.StreamReader, Any]:
        # Certificates of Dask say who may take part, not which host one is.
        name = gate.host if self._dialling is not None else None
        reader, writer = await asyncio.open_connection(
            gate.host, gate.port, ssl=self._dialling, server_hostname=name
        )
        writer.write(f"{line}\n".encode())
        return reader, writer

    async def _tell(self, run: str, gate: Gate) -> None:
        _, writer = await self._dial(gate, f"failed {run}")
        await writer.drain()
        await _close(writer)

    def _end(
        self, control: asyncio.Server, servers: Mapping[tuple[str, int], asyncio.Server]
    ) -> None:
        control.close()
        for way, server in servers.items():
            server.close()
            self._ways.pop(way, None)

    async def _open(
        self, address: str, port: int, gate: Gate, servers: dict[tuple[str, int], asyncio.Server]
    ) -> None:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                ends = await self._dial(gate, f"connect {address} {port}")
                await _join((reader, writer), ends)
            await _close(writer)

        # Another rank of this machine may ask for the same way, also at the same time.
        async with self._opening:
            if self._ways.get((address, port)) != gate:
                # In use by another program, or for another machine: no way to the peer.
                servers[address, port] = await asyncio.start_server(carry, address, port)
                self._ways[address, port] = gate

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, OverflowError):
            line = await asyncio.wait_for(reader.readline(), _SECONDS)
            match line.decode(errors="replace").split():
                case ["failed", run]:
                    self._failed[run] = None
                    while len(self._failed) > _MOST_FAILED:
                        del self._failed[next(iter(self._failed))]
                case ["connect", address, port] if ipaddress.ip_address(address) in NETWORK:
                    ends = await asyncio.open_connection(address, int(port))
                    await _join((reader, writer), ends)
        await _close(writer)


async def _join(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Carry bytes both ways until one side ends."""
    ways = {
        asyncio.ensure_future(_carry(one[0], other[1])),
        asyncio.ensure_future(_carry(other[0], one[1])),
    }
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for way in ways:
        way.cancel()
    await _close(other[1])


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(_BLOCK_BYTES):
            writer.write(block)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()
