"""Who is let in, and what those who are not can read."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from tapml_rpc.security.standing import FAILURES
from tapml_rpc.security.token import TokenBook
from tapml_rpc.supervisor.websocket_front import WebSocketFront
from tapml_rpc.websocket.opening import open_websocket
from tapml_rpc.welcome import Bounds
from tapml_targets.errors import SetupError
from tests.rpc.websocket.one_token import OneToken
from tests.rpc.websocket.peers import WebSocketPeer, open_connection
from tests.rpc.websocket.serving import WebSocketServer

TOKEN = "the-secret-of-this-server"
NO_HUB: Any = SimpleNamespace(bounds=Bounds())
"""Whoever is refused never gets as far as the hub."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[WebSocketFront]:
    front = WebSocketFront(
        NO_HUB, "127.0.0.1", 0, tokens=OneToken(TOKEN), origins=["https://lab.example"]
    )
    yield front
    front.close()


@pytest.fixture(scope="module")
def open_front() -> Iterator[WebSocketFront]:
    front = WebSocketFront(NO_HUB, "127.0.0.1", 0)
    yield front
    front.close()


def refusal(address: str, path: str = "/control", **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        open_connection(address + path, **options)
    response = caught.value.response
    return response.status_code, (response.body or b"").decode()


@pytest.mark.parametrize(
    ("token", "said"), [(None, "no token came"), ("wrong", "the token is not this server's")]
)
def test_without_the_token_nothing_is_upgraded(
    guarded: WebSocketFront, token: str | None, said: str
) -> None:
    status, body = refusal(guarded.address, token=token)
    assert status == 401 and said in body and "tapml-token.TOKEN" in body
    with pytest.raises(SetupError, match=rf"HTTP 401\): {said}"):
        open_websocket(guarded.address, timeout=5, token=token)


@pytest.mark.parametrize(
    "options",
    [
        {"token": TOKEN},
        {"additional_headers": {"Authorization": f"Bearer {TOKEN}"}},
        {"token": TOKEN, "origin": "https://lab.example"},
    ],
    ids=["subprotocol", "header", "allowed page"],
)
def test_the_token_comes_as_a_header_or_a_subprotocol(
    guarded: WebSocketFront, options: dict[str, Any]
) -> None:
    connection: ClientConnection = open_connection(guarded.address + "/control", **options)
    assert connection.subprotocol == "tapml.1"
    connection.close()


def test_a_token_for_one_session_opens_one() -> None:
    book = TokenBook()
    front = WebSocketFront(NO_HUB, "127.0.0.1", 0, tokens=book)
    token = book.issue("once", once=True)
    open_connection(front.address + "/control", token).close()
    open_connection(front.address + "/data", token).close()
    status, body = refusal(front.address, token=token)
    assert status == 401 and "used up" in body
    for _ in range(FAILURES - 1):
        assert refusal(front.address, token="guess")[0] == 401
    assert refusal(front.address, token="guess")[0] == 429
    open_connection(front.address + "/control", book.issue("right")).close()
    front.close()


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil.example", "http://localhost:x"],
)
def test_a_page_from_elsewhere_is_refused(open_front: WebSocketFront, origin: str) -> None:
    status, body = refusal(open_front.address, origin=origin)
    assert status == 403 and origin in body


@pytest.mark.parametrize("origin", ["http://localhost:8000", "https://127.0.0.1", None])
def test_pages_of_this_machine_and_programs_are_let_in(
    open_front: WebSocketFront, origin: str | None
) -> None:
    open_connection(open_front.address + "/data", origin=origin).close()


def test_a_list_of_origins_takes_the_place_of_this_machine(guarded: WebSocketFront) -> None:
    assert refusal(guarded.address, token=TOKEN, origin="http://localhost")[0] == 403


def test_another_subprotocol_is_told_which_one_is_spoken(open_front: WebSocketFront) -> None:
    status, body = refusal(open_front.address, subprotocols=["tapml.0"])
    assert status == 400 and "speaks the subprotocol tapml.1" in body and "tapml.0" in body


def test_another_path_is_told_which_ones_there_are(open_front: WebSocketFront) -> None:
    status, body = refusal(open_front.address, path="/")
    assert status == 404 and "/control and /data" in body


def test_a_token_is_never_repeated(guarded: WebSocketFront) -> None:
    _, body = refusal(guarded.address, token="mistyped", subprotocols=["tapml-token.mistyped"])
    assert "mistyped" not in body
    _, body = refusal(guarded.address, subprotocols=[f"tapml-token.{TOKEN}"])
    assert TOKEN not in body


class SlowGuard:
    """Admits everybody, and nobody before it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        self.go.wait(60)
        return "somebody"


def test_connections_are_counted_before_they_are_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapml_rpc.supervisor.websocket_front.MOST_CONNECTIONS", 2)
    guard = SlowGuard()
    front = WebSocketFront(NO_HUB, "127.0.0.1", 0, tokens=guard)
    place = urlsplit(front.address)
    request = (
        f"GET /data HTTP/1.1\r\nHost: {place.netloc}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer any\r\n"
        "Sec-WebSocket-Protocol: tapml.1\r\n\r\n"
    ).encode()
    connections = []
    try:
        for _ in range(4):
            connection = socket.create_connection((place.hostname, place.port), 20)
            connections.append(connection)
            connection.sendall(request)
        # Two wait for the guard. The others are answered at once.
        refused: set[socket.socket] = set()
        while len(refused) < 2:
            ready, _, _ = select.select(set(connections) - refused, [], [], 20)
            assert ready, "more connections than allowed wait for the guard"
            for connection in ready:
                assert connection.recv(4096).startswith(b"HTTP/1.1 503 ")
                refused.add(connection)
        guard.go.set()
        for connection in set(connections) - refused:
            assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")
            connection.close()
            connections.remove(connection)
        # Those that are lost make room, however far they came.
        while True:
            with socket.create_connection((place.hostname, place.port), 20) as another:
                another.sendall(request)
                if another.recv(4096).startswith(b"HTTP/1.1 101 "):
                    break
    finally:
        guard.go.set()
        for connection in connections:
            connection.close()
        front.close()


def test_a_port_that_is_taken_is_named(open_front: WebSocketFront) -> None:
    port = int(open_front.address.rpartition(":")[2])
    with pytest.raises(SetupError, match=f"cannot listen on 127.0.0.1 port {port}"):
        WebSocketFront(NO_HUB, "127.0.0.1", port)


def test_an_old_version_is_told_which_one_is_spoken(server: WebSocketServer) -> None:
    with WebSocketPeer(server.address, versions=[0]) as old:
        assert old.welcome["type"] == "refused"
        assert "speaks protocol version 3, the client [0]" in old.welcome["error"]["message"]
