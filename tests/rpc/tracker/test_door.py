"""The tracker's door over WebSocket: who gets in, who is told what, who waits for nobody."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from tapml_rpc.flow import BUFFER_BYTES
from tapml_rpc.tracker.switchboard import MAX_FLOWS_OF_LEASE
from tapml_rpc.websocket.handshake import open_socket
from tapml_rpc.websocket.server import MAX_UPGRADES
from tests.rpc.tracker.doors import RunningDoor
from tests.rpc.tracker.trackers import PATIENCE_SECONDS, wait_for
from tests.rpc.websocket.one_token import OneToken

TOKEN = "right"


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Have `work` done on another thread while the block runs, and be done with it after."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result(PATIENCE_SECONDS)


def joined(
    door: RunningDoor, stack: ExitStack, role: str
) -> tuple[ClientConnection, ClientConnection]:
    """A client's connection and its device's, joined; of the lease ``lease``."""
    number = len(door.calls)
    client: list[ClientConnection] = []
    with running(lambda: client.append(door.open(f"/{role}", "leasetoken"))):
        wait_for(lambda: len(door.calls) > number)
        device = door.open("/leg", door.calls[-1][1])
    return stack.enter_context(client[0]), stack.enter_context(device)


@pytest.fixture(scope="module")
def door() -> Iterator[RunningDoor]:
    opened = RunningDoor(guard=OneToken(TOKEN), origins=["https://pages.example"])
    opened.allow("lease", "leasetoken")
    with closing(opened):
        yield opened


def status_of(refused: pytest.ExceptionInfo[InvalidStatus]) -> tuple[int, str]:
    response = refused.value.response
    return response.status_code, bytes(response.body or b"").decode()


@pytest.mark.parametrize(
    ("path", "secret", "origin", "status", "said"),
    [
        ("/", TOKEN, None, HTTPStatus.NOT_FOUND, "/tracker and /control and /data and /leg"),
        ("/tracker", "", None, HTTPStatus.UNAUTHORIZED, "no token came"),
        ("/tracker", "wrong", None, HTTPStatus.UNAUTHORIZED, "not this server's"),
        ("/tracker", TOKEN, "https://evil.example", HTTPStatus.FORBIDDEN, "pages from"),
        ("/control", "", None, HTTPStatus.UNAUTHORIZED, "whose devices are tracker:NAME; no token"),
        ("/control", TOKEN, None, HTTPStatus.UNAUTHORIZED, "the lease has ended, or never was"),
        ("/data", "guess", None, HTTPStatus.UNAUTHORIZED, "the lease has ended, or never was"),
        ("/leg", "leasetoken", None, HTTPStatus.UNAUTHORIZED, "the lease has ended, or never was"),
        ("/leg", TOKEN, "https://evil.example", HTTPStatus.FORBIDDEN, "pages from"),
    ],
)
def test_who_may_not_come_in_is_told_why(
    door: RunningDoor, path: str, secret: str, origin: str | None, status: int, said: str
) -> None:
    calls = len(door.calls)
    with pytest.raises(InvalidStatus) as refused:
        door.open(path, secret, origin=origin)
    found, body = status_of(refused)
    assert found == status and said in body
    assert len(door.calls) == calls


@pytest.mark.parametrize("origin", [None, "http://localhost:8000", "https://pages.example"])
def test_who_may_comes_in_with_a_token_and_is_heard(door: RunningDoor, origin: str | None) -> None:
    with door.open("/tracker", TOKEN, origin=origin) as peer:
        peer.send(b"hello")
        wait_for(lambda: b"hello" in door.heard)
    door.heard.clear()


def test_a_request_that_is_no_upgrade_is_told_so(door: RunningDoor) -> None:
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_SECONDS) as plain:
        plain.sendall(
            b"GET /tracker HTTP/1.1\r\nHost: x\r\nSec-WebSocket-Protocol: tapml.1\r\n"
            b"Authorization: Bearer right\r\n\r\n"
        )
        assert plain.recv(100).startswith(b"HTTP/1.1 426 ")


@pytest.mark.parametrize(
    ("message", "code"), [("a text", 1003), (bytes((64 << 10) + 5), 1009)], ids=["text", "long"]
)
def test_what_is_no_message_ends_its_connection_with_a_code(
    door: RunningDoor, message: str | bytes, code: int
) -> None:
    with door.open("/tracker", TOKEN) as peer:
        peer.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            peer.recv(PATIENCE_SECONDS)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == code


def test_who_cannot_come_in_anyway_keeps_a_token_that_is_good_once() -> None:
    spent: list[str] = []

    class Once:
        def check(self, token: str, address: str, *, opens: bool = True) -> str:
            spent.append(token)
            return "somebody"

    opened = RunningDoor(guard=Once())
    with closing(opened):
        with socket.create_connection(("127.0.0.1", opened.port), PATIENCE_SECONDS) as plain:
            plain.sendall(
                b"GET /tracker HTTP/1.1\r\nHost: x\r\nSec-WebSocket-Protocol: tapml.1\r\n"
                b"Authorization: Bearer once\r\n\r\n"
            )
            assert plain.recv(100).startswith(b"HTTP/1.1 426 ")
        opened.door.most = 0
        with pytest.raises(InvalidStatus) as refused:
            opened.open("/tracker", "once")
        assert status_of(refused)[0] == HTTPStatus.SERVICE_UNAVAILABLE and not spent
        opened.door.most = 1
        with opened.open("/tracker", "once"):
            assert spent == ["once"]


def test_a_token_that_takes_long_to_check_holds_nobody_up() -> None:
    asked, known = threading.Event(), threading.Event()

    class Slow:
        def check(self, token: str, address: str, *, opens: bool = True) -> str:
            if token == "slow":
                asked.set()
                known.wait(PATIENCE_SECONDS)
            return "somebody"

    opened = RunningDoor(guard=Slow())
    with closing(opened), running(lambda: opened.open("/tracker", "slow").close()):
        try:
            assert asked.wait(PATIENCE_SECONDS)
            with opened.open("/tracker", TOKEN) as peer:
                peer.send(b"served")
                wait_for(lambda: opened.heard == [b"served"])
        finally:
            known.set()


def test_garbage_and_silence_at_the_door_keep_nobody_out(door: RunningDoor) -> None:
    start = b"GET /tracker HTTP/1.1\r\n"
    with ExitStack() as stack:
        for number in range(MAX_UPGRADES + 20):
            stranger = socket.create_connection(("127.0.0.1", door.port), PATIENCE_SECONDS)
            stack.enter_context(stranger)
            if number % 4 == 1:
                stranger.sendall(start[: number % len(start)] + random.randbytes(20))
        with door.open("/tracker", TOKEN) as peer:
            peer.send(b"still served")
            wait_for(lambda: b"still served" in door.heard)
    door.heard.clear()


def test_messages_go_through_whole_and_no_end_is_mistaken_for_another(door: RunningDoor) -> None:
    with ExitStack() as stack:
        client, device = joined(door, stack, "control")
        assert door.calls[-1][::2] == ("lease", "control")
        payload = random.randbytes((4 << 20) + 3)
        for size in (0, 1, 125, 126, 70_000, len(payload)):
            client.send(payload[:size])
            assert device.recv(PATIENCE_SECONDS) == payload[:size]
            device.send(payload[:size])
            assert client.recv(PATIENCE_SECONDS) == payload[:size]
        # Pings are the ends' own, through and through.
        assert client.ping().wait(PATIENCE_SECONDS)
        stream = door.calls[-1][1]
        with pytest.raises(InvalidStatus):
            door.open("/leg", stream)
        client.close(4000, "enough")
        with pytest.raises(ConnectionClosed) as closed:
            device.recv(PATIENCE_SECONDS)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4000, "enough")


def test_a_side_that_reads_nothing_stops_the_other_and_heartbeats_pass_it_by(
    door: RunningDoor,
) -> None:
    with ExitStack() as stack:
        control, device_control = joined(door, stack, "control")
        control.send(b"there")
        assert device_control.recv(PATIENCE_SECONDS) == b"there"
        number, before = len(door.calls), set(door.forwarder.flows)

        def raw(path: str, secret: str) -> socket.socket:
            deadline = time.monotonic() + PATIENCE_SECONDS
            url = door.address + path
            return open_socket(url, deadline=deadline, token=secret, ssl_context=None)

        client: list[socket.socket] = []
        with running(lambda: client.append(raw("/data", "leasetoken"))):
            wait_for(lambda: len(door.calls) > number)
            device = stack.enter_context(raw("/leg", door.calls[-1][1]))
        flood = stack.enter_context(client[0])
        wait_for(lambda: len(door.forwarder.flows - before) == 1)
        (flow,) = door.forwarder.flows - before
        # One frame of 4 MiB after the other, until nothing is taken any more.
        frame = b"\x82\xff" + (4 << 20).to_bytes(8) + bytes(4) + bytes(4 << 20)
        flood.settimeout(0.5)
        sent, rest = 0, memoryview(frame)
        with pytest.raises(TimeoutError):
            while True:
                taken = flood.send(rest)
                sent += taken
                rest = rest[taken:] or memoryview(frame)
        # Sockets hold a few MiB each; the door a buffer, and nothing grows.
        assert sent < 64 << 20
        assert sum(way.held for way in flow._ways) <= 2 * BUFFER_BYTES
        for _ in range(5):
            control.send(b"ping")
            assert device_control.recv(PATIENCE_SECONDS) == b"ping"
            device_control.send(b"pong")
            assert control.recv(PATIENCE_SECONDS) == b"pong"
        # It goes on where it stopped, byte by byte.
        device.settimeout(PATIENCE_SECONDS)
        begun = -(-sent // len(frame))
        left = sent - 4 * begun  # the masks of the frames that have begun
        got = bytearray()
        while len(got) < left:
            got += device.recv(1 << 20)
        plain = b"\x82\x7f" + (4 << 20).to_bytes(8) + bytes(4 << 20)
        assert got == (plain * begun)[: len(got)]


def test_a_lease_that_ends_ends_what_goes_through_it(door: RunningDoor) -> None:
    door.allow("short", "shorttoken")
    with ExitStack() as stack:
        number = len(door.calls)
        client: list[ClientConnection] = []
        with running(lambda: client.append(door.open("/control", "shorttoken"))):
            wait_for(lambda: len(door.calls) > number)
            device = stack.enter_context(door.open("/leg", door.calls[-1][1]))
        stack.enter_context(client[0])
        door.cut("short", "shorttoken")
        for each in (client[0], device):
            with pytest.raises(ConnectionClosed, match=r"1001.*the lease is over"):
                each.recv(PATIENCE_SECONDS)
    with pytest.raises(InvalidStatus) as refused:
        door.open("/control", "shorttoken")
    assert status_of(refused)[0] == HTTPStatus.UNAUTHORIZED


def test_a_lease_has_so_many_connections_and_no_more(door: RunningDoor) -> None:
    door.allow("wide", "widetoken")
    with ExitStack() as stack:
        endpoints = []
        for _ in range(MAX_FLOWS_OF_LEASE):
            endpoint = socket.create_connection(("127.0.0.1", door.port), PATIENCE_SECONDS)
            stack.enter_context(endpoint).sendall(
                b"GET /data HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Protocol: tapml.1\r\nAuthorization: Bearer widetoken\r\n\r\n"
            )
            endpoints.append(endpoint)
        wait_for(lambda: sum(call[0] == "wide" for call in door.calls) == MAX_FLOWS_OF_LEASE)
        with pytest.raises(InvalidStatus) as refused:
            door.open("/data", "widetoken")
        assert status_of(refused) == (503, "the relay has no room\n")
        # Who sends before it is answered is none of ours.
        endpoints[0].sendall(b"early")
        assert endpoints[0].recv(100) == b""


def test_who_gives_no_sign_of_life_is_dropped() -> None:
    opened = RunningDoor(silence_seconds=0.3)
    with closing(opened):
        deadline = time.monotonic() + PATIENCE_SECONDS
        url = f"{opened.address}/tracker"
        with open_socket(url, deadline=deadline, token=None, ssl_context=None):
            wait_for(lambda: opened.gone == ["silent for 0.3 s"])
