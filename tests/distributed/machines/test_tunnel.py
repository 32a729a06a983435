"""Tunnels between machines: whom they let in, and where they lead."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tapml.distributed.machines.tunnel import Tunnel, address_of
from tapml_targets.errors import SetupError


@pytest.fixture(scope="module")
def certificates() -> Iterator[tuple[ssl.SSLContext, ssl.SSLContext]]:
    # Slow to import, and only one of the processes that share the tests runs these.
    from distributed import Security

    security = Security.temporary()
    yield (
        security.get_listen_args("worker")["ssl_context"],
        security.get_connection_args("worker")["ssl_context"],
    )


def _answer(tunnel: Tunnel, line: str, context: ssl.SSLContext | None) -> bytes:
    """What a tunnel answers to one who connects, sends a line and a word, and waits for its end."""

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection(*tunnel.gate, ssl=context)
        writer.write(line.encode() + b"\nword")
        return await asyncio.wait_for(reader.read(), 5)

    return asyncio.run(ask())


def test_a_connection_is_carried_to_the_address_of_a_rank_and_to_no_other(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    serving, dialling = certificates
    tunnel = Tunnel("127.0.0.1", serving, dialling)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(4)).upper())
        await writer.drain()
        writer.close()

    async def both() -> list[bytes]:
        own, other = address_of(9), "127.0.0.1"
        found = []
        for address in (own, other):
            server = await asyncio.start_server(echo, address, 0)
            port = server.sockets[0].getsockname()[1]
            found.append(
                await asyncio.to_thread(_answer, tunnel, f"connect {address} {port}", dialling)
            )
            server.close()
        return found

    assert asyncio.run(both()) == [b"WORD", b""]


def test_who_has_no_certificate_gets_nothing(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    tunnel = Tunnel("127.0.0.1", *certificates)
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE

    try:
        answer = _answer(tunnel, "failed run", stranger)
    except (ssl.SSLError, ConnectionError):
        answer = b""  # Which of the two a stranger sees depends on when the other end closes.
    assert answer == b""
    assert not tunnel.failed("run")


def test_a_failure_is_told_to_another_machine_and_forgotten_after_the_run(tmp_path: Path) -> None:
    one, other = Tunnel("127.0.0.1", None, None), Tunnel("127.0.0.2", None, None)

    with other.run("first", tmp_path / "ways"):
        one.tell("first", other.gate)
        until = time.monotonic() + 5
        while not other.failed("first") and time.monotonic() < until:
            time.sleep(0.01)
        assert other.failed("first")
    assert not other.failed("first")


def test_a_way_is_opened_once_and_not_where_another_program_listens(tmp_path: Path) -> None:
    one, other = Tunnel("127.0.0.1", None, None), Tunnel("127.0.0.2", None, None)
    with socket.create_server((address_of(5), 0)) as taken, one.run("r", tmp_path / "a") as way:
        with pytest.raises(OSError, match="in use"):
            way(address_of(5), taken.getsockname()[1], other.gate)
        with socket.create_server((address_of(6), 0)) as free:
            port = free.getsockname()[1]
        way(address_of(6), port, other.gate)
        way(address_of(6), port, other.gate)
        with pytest.raises(OSError, match="in use"):
            way(address_of(6), port, one.gate)
    with one.run("next", tmp_path / "b") as way:
        way(address_of(6), port, one.gate)


@pytest.mark.parametrize("line", ["connect", "connect 127.77.0.1 99999", "\xff" * 70_000, ""])
def test_a_line_that_is_none_of_its_own_ends_the_connection(line: str) -> None:
    # A socket that is closed with bytes unread is reset.
    with suppress(ConnectionError):
        assert _answer(Tunnel("127.0.0.1", None, None), line, None) == b""


def test_failures_of_runs_that_never_begin_here_are_forgotten_too() -> None:
    tunnel = Tunnel("127.0.0.1", None, None)
    for number in range(100):
        _answer(tunnel, f"failed run-{number}", None)

    assert tunnel.failed("run-99") and not tunnel.failed("run-0")


def test_off_loopback_a_tunnel_needs_certificates() -> None:
    with pytest.raises(SetupError, match=r"ranks on 192\.0\.2\.7 need TLS: start scheduler"):
        Tunnel("192.0.2.7", None, None)


def test_a_tunnel_that_cannot_listen_leaves_no_thread(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    before = threading.active_count()
    with pytest.raises(SetupError, match=r"no tunnel can listen on 192\.0\.2\.7"):
        Tunnel("192.0.2.7", *certificates)
    until = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before
