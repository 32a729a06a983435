"""A server's end of a WebSocket: messages however they are cut, and an end that is told once."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import partial

import pytest
from websockets.frames import Close, Frame, Opcode

from tapml_rpc.flow import Forwarder
from tapml_rpc.websocket.connection import ServerConnection

MOST_BYTES = 1 << 20
PATIENCE = 20.0


class Served:
    """A connection in this process, and its peer's socket."""

    def __init__(self) -> None:
        self.heard: list[bytes | None] = []
        self.ended: list[str] = []
        self.sent: list[str] = []
        self.forwarder = Forwarder()
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.settimeout(PATIENCE)
        self.connection = ServerConnection(
            ours,
            self.forwarder,
            self._hear,
            self.ended.append,
            most_bytes=MOST_BYTES,
            most_unsent=4 * MOST_BYTES + (4 << 10),
        )

    def _hear(self, message: memoryview | None) -> None:
        self.heard.append(None if message is None else bytes(message))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.forwarder.step(0.01)

    def close(self) -> None:
        self.forwarder.close()
        self.peer.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def frame(opcode: Opcode, payload: bytes, *, final: bool = True) -> bytes:
    return Frame(opcode, payload, final).serialize(mask=True)


@pytest.mark.parametrize("cut", [1, 3, 1000, 1 << 20])
def test_a_message_is_heard_once_it_is_whole_with_pings_answered_in_it(
    served: Served, cut: int
) -> None:
    payload = bytes(range(256)) * (4 if cut == 1 else 100)
    half = len(payload) // 2
    sent = frame(Opcode.BINARY, payload[:half], final=False) + frame(Opcode.PING, b"?")
    sent += frame(Opcode.CONT, payload[half:]) + frame(Opcode.BINARY, b"")
    for start in range(0, len(sent), cut):
        served.peer.sendall(sent[start : start + cut])
        served.step()
    assert served.heard == [payload, b""]
    assert served.peer.recv(100) == Frame(Opcode.PONG, b"?").serialize(mask=False)


def test_payloads_are_given_back_in_their_order_once_they_have_left(served: Served) -> None:
    memory = bytes(3 << 19)
    for name in ("first", "second"):
        served.connection.put(b"head", [memory], partial(served.sent.append, name))
    assert served.sent == [] and served.connection.stalled_seconds(time.monotonic() + 1) > 0
    left = 2 * (10 + 4 + len(memory))
    while left:
        left -= len(served.peer.recv(1 << 20))
        served.step()
    assert served.sent == ["first", "second"]
    assert served.connection.stalled_seconds(time.monotonic() + 1) == 0


def test_a_peer_that_takes_nothing_is_ended_and_its_payloads_are_given_back(
    served: Served,
) -> None:
    memory = bytes(MOST_BYTES)
    taken = [
        served.connection.put(b"", [memory], lambda: served.sent.append("it")) for _ in "12345"
    ]
    assert taken == [True] * 4 + [False] and len(served.sent) == 5
    assert served.ended == ["it takes none of its messages"] and served.connection.gone


def test_pongs_that_nobody_takes_are_bounded(served: Served) -> None:
    served.peer.sendall(10_000 * frame(Opcode.PING, b""))
    served.step(2)
    assert served.ended == ["it takes none of its messages"] and served.connection.gone


def test_a_goodbye_comes_behind_what_waits_and_nothing_is_heard_after_it(served: Served) -> None:
    served.connection.put(b"last words")
    served.connection.close(1000, "enough")
    assert served.ended == ["enough"] and not served.connection.put(b"more")
    served.peer.sendall(frame(Opcode.BINARY, b"too late"))
    served.step(2)
    said = Frame(Opcode.BINARY, b"last words").serialize(mask=False)
    said += Frame(Opcode.CLOSE, Close(1000, "enough").serialize()).serialize(mask=False)
    assert served.peer.recv(1000) == said and served.peer.recv(1) == b""
    assert served.heard == []
    served.peer.close()
    served.step()
    assert served.connection.gone and served.ended == ["enough"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(Opcode.BINARY, bytes(MOST_BYTES + 1)), 1009),
        (Frame(Opcode.BINARY, b"no mask").serialize(mask=False), 1002),
        (frame(Opcode.CLOSE, Close(4000, "bye").serialize()), 1000),
    ],
    ids=["long", "unmasked", "goodbye"],
)
def test_what_ends_a_connection_is_answered_by_a_code(
    served: Served, sent: bytes, code: int
) -> None:
    served.peer.setblocking(False)
    served.peer.send(sent)
    served.peer.settimeout(PATIENCE)
    served.step()
    assert Close.parse(served.peer.recv(1000)[2:]).code == code
    assert len(served.ended) == 1
