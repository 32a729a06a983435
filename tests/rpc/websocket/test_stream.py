"""The client's end of a connection, against the package's own encoder and decoder."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from tapml_rpc import wire
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES
from tapml_rpc.websocket.stream import PIECE_BYTES, Stream
from tapml_targets.errors import ProtocolError

PATIENCE_MILLISECONDS = 60_000


@pytest.fixture
def pair() -> Iterator[tuple[Stream, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = Stream(ours)
    yield stream, theirs
    stream.abort()
    theirs.close()


def frames_of(message: bytes, cuts: list[int], *, pings: bool) -> bytes:
    """A message in fragments as a server sends it, with a ping before each where asked for."""
    edges = [0, *sorted({min(cut, len(message)) for cut in cuts}), len(message)]
    sent = b""
    for number, (start, end) in enumerate(pairwise(edges)):
        opcode = Opcode.CONT if number else Opcode.BINARY
        if pings:
            sent += Frame(Opcode.PING, b"%d" % number).serialize(mask=False)
        final = number == len(edges) - 2
        sent += Frame(opcode, message[start:end], fin=final).serialize(mask=False)
    return sent


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=300) | st.builds(bytes, st.integers(0, 200_000)),
            st.lists(st.integers(0, 200_000), max_size=4),
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
    st.integers(1, 50_000),
)
def test_messages_arrive_whole_however_they_are_cut(
    messages: list[tuple[bytes, list[int]]], pings: bool, piece: int
) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = Stream(ours)
    sent = b"".join(
        frames_of(frames.join(message), cuts, pings=pings) for message, cuts in messages
    )
    piece = max(piece, len(sent) // 200)

    def send() -> None:
        for start in range(0, len(sent), piece):
            theirs.sendall(sent[start : start + piece])

    sender = threading.Thread(target=send)
    sender.start()
    for message, _ in messages:
        received = stream.receive(PATIENCE_MILLISECONDS)
        assert received is not None and bytes(received[0]) == message
    sender.join()
    assert stream.receive(0) is None and not stream.torn
    stream.abort()
    theirs.close()


SIZES = (0, 1, 125, 126, 65_535, 65_536, PIECE_BYTES - 8, PIECE_BYTES, 3 * PIECE_BYTES + 5)


@pytest.mark.parametrize("chunk_bytes", SIZES)
def test_what_is_sent_is_one_masked_message(
    pair: tuple[Stream, socket.socket], chunk_bytes: int
) -> None:
    assert_arrives(pair, b"headhead", payload(chunk_bytes))


@pytest.mark.parametrize("chunk_bytes", [0, 1, PIECE_BYTES + 1])
@pytest.mark.parametrize("head_bytes", [*SIZES, wire.MAX_HEADER_BYTES])
def test_a_header_of_any_size_is_sent_with_and_without_a_chunk(
    pair: tuple[Stream, socket.socket], head_bytes: int, chunk_bytes: int
) -> None:
    assert_arrives(pair, payload(head_bytes), payload(chunk_bytes))


def payload(nbytes: int) -> bytes:
    return (bytes(range(251)) * (nbytes // 251 + 1))[:nbytes]


def assert_arrives(pair: tuple[Stream, socket.socket], head: bytes, chunk: bytes) -> None:
    """Send a message, and read it with the package's decoder, which refuses unmasked frames."""
    stream, theirs = pair
    theirs.settimeout(PATIENCE_MILLISECONDS / 1000)
    sender = threading.Thread(target=stream.send, args=(head, chunk))
    sender.start()
    protocol = ServerProtocol(state=OPEN, max_size=MAX_MESSAGE_BYTES)
    found = b""
    final = False
    while not final:
        protocol.receive_data(theirs.recv(65536))
        for frame in protocol.events_received():
            assert isinstance(frame, Frame)
            found += bytes(frame.data)
            final = frame.fin
    sender.join()
    assert found == frames.join(head, chunk)


def test_an_interrupt_while_nothing_comes_leaves_the_stream_whole(
    pair: tuple[Stream, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, theirs = pair
    theirs.sendall(b"\x82")

    class Interrupted:
        def poll(self, milliseconds: int) -> list[tuple[int, int]]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stream, "_poll_in", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            stream.receive(PATIENCE_MILLISECONDS)
    assert not stream.torn
    theirs.sendall(b"\x06" + frames.join(b"ok"))
    received = stream.receive(PATIENCE_MILLISECONDS)
    assert received is not None and bytes(received[0]) == b"ok"


def test_closing_does_not_wait_for_a_peer_that_takes_nothing(
    pair: tuple[Stream, socket.socket],
) -> None:
    stream, _ = pair

    def give_up() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        stream.send(b"headhead", bytes(4 << 20), give_up)
    assert stream.torn
    stream.close()
    assert stream.fileno() == -1


def test_after_a_message_that_is_none_nothing_more_can_be_told_apart(
    pair: tuple[Stream, socket.socket],
) -> None:
    data, server = pair
    whole = frames.join(wire.pack({"type": "pong"}), b"12345678")
    server.sendall(bytes([0x82, len(whole)]) + whole)
    message = data.receive(1000)
    assert message is not None
    assert wire.unpack(message[0]) == {"type": "pong"}
    assert bytes(message[1]) == b"12345678"
    assert not data.torn
    # A header longer than the message.
    server.sendall(b"\x82\x05\xff\x00\x00\x00x")
    with pytest.raises(ProtocolError):
        data.receive(1000)
    assert data.torn
