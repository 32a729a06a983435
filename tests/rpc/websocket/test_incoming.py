"""What a server sends is taken as the messages it is, or refused; nothing is waited for."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from websockets.frames import Close, Frame, Opcode

from tapml_rpc.transport import EndedError
from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES
from tapml_rpc.websocket.stream import Incoming
from tapml_targets.errors import ProtocolError


@pytest.fixture
def answered() -> list[bytes]:
    """The pings that were answered."""
    return []


@pytest.fixture
def pair(answered: list[bytes]) -> Iterator[tuple[Incoming, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield Incoming(ours, answered.append), theirs


def test_a_message_is_given_once_it_is_whole(
    pair: tuple[Incoming, socket.socket], answered: list[bytes]
) -> None:
    incoming, theirs = pair
    sent = Frame(Opcode.PING, b"now").serialize(mask=False)
    sent += Frame(Opcode.BINARY, bytes(range(256)) * 400).serialize(mask=False)
    for start in range(0, len(sent), 50_000):
        assert incoming.next() is None
        theirs.sendall(sent[start : start + 50_000])
    message = incoming.next()
    assert message is not None and bytes(message) == bytes(range(256)) * 400
    assert incoming.next() is None and answered == [b"now"]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (Frame(Opcode.TEXT, b"hi").serialize(mask=False), "messages are binary"),
        (Frame(Opcode.CONT, b"hi").serialize(mask=False), "out of turn"),
        (Frame(Opcode.BINARY, b"hi").serialize(mask=True), "a mask"),
        (b"\xc2\x00", "reserved bits"),
        (b"\x82\x7f" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big"), "over 5242896 bytes"),
        (b"\x89\x7e\x00\x80", "control frame that is fragmented"),
        (b"\x8b\x00", "unknown kind 11"),
    ],
    ids=["text", "continuation", "masked", "reserved", "too long", "long ping", "unknown"],
)
def test_what_no_server_sends_is_refused(
    pair: tuple[Incoming, socket.socket], sent: bytes, said: str
) -> None:
    incoming, theirs = pair
    theirs.sendall(sent)
    with pytest.raises(ProtocolError, match=said):
        incoming.next()


def test_a_close_says_its_reason(pair: tuple[Incoming, socket.socket]) -> None:
    incoming, theirs = pair
    reason = Close(1001, "the server ends").serialize()
    theirs.sendall(Frame(Opcode.CLOSE, reason).serialize(mask=False))
    with pytest.raises(EndedError, match=r"1001 .*the server ends"):
        incoming.next()
