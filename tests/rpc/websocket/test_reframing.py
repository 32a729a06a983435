"""Frames in passing: what one side sent is what the other gets, with its mask, however cut."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from tapml_rpc.flow import BUFFER_BYTES
from tapml_rpc.websocket.endpoint import GROWTH, Reframer, WebSocketEndpoint
from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES
from tapml_rpc.websocket.framing import FrameReader
from tapml_targets.errors import ProtocolError

payloads = st.binary(max_size=200) | st.sampled_from([125, 126, 65535, 65536]).map(bytes)
messages = st.lists(st.lists(payloads, min_size=1, max_size=3), max_size=3)


def frames_of(fragments: list[bytes]) -> list[Frame]:
    """A message in fragments, with a ping after each of them but the last."""
    frames: list[Frame] = []
    for number, payload in enumerate(fragments):
        final = number == len(fragments) - 1
        opcode = Opcode.CONT if number else Opcode.BINARY
        frames += [Frame(opcode, payload, final), Frame(Opcode.PING, b"?")]
    return frames[:-1]


def sent(frames: Iterable[Frame], *, masked: bool) -> bytes:
    return b"".join(frame.serialize(mask=masked) for frame in frames)


def passed(reframer: Reframer, data: bytes, cut: int) -> bytes:
    view = memoryview(data)
    return b"".join(reframer.feed(view[i : i + cut]) for i in range(0, len(view), cut))


@settings(max_examples=40)
@given(messages, st.sampled_from([1, 2, 7, 1000, 1 << 20]))
def test_a_mask_is_taken_off_and_put_on_and_nothing_else_changes(
    several: list[list[bytes]], cut: int
) -> None:
    frames = [frame for fragments in several for frame in frames_of(fragments)]
    cut = max(cut, sum(len(frame.data) for frame in frames) // 200)
    plain = sent(frames, masked=False)
    assert passed(Reframer(masked=True), sent(frames, masked=True), cut) == plain
    masked = passed(Reframer(masked=False), plain, cut)
    assert len(masked) <= GROWTH * len(plain)
    assert passed(Reframer(masked=True), masked, cut) == plain


def test_what_grows_most_has_room_in_a_flow_s_buffer() -> None:
    here, there = socket.socketpair()
    buffer = memoryview(bytearray(BUFFER_BYTES))
    here.setblocking(False)
    there.settimeout(20)
    there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with there, closing(WebSocketEndpoint(here, masked=False)) as endpoint:
        there.sendall(b"\x82\x7f" + bytes(7))
        with pytest.raises(BlockingIOError):
            endpoint.recv_into(buffer)
        # The last byte of that head, which has no payload, and empty frames behind it.
        there.sendall(bytes(1) + b"\x82\x00" * (BUFFER_BYTES // GROWTH // 2))
        assert endpoint.recv_into(buffer) > BUFFER_BYTES // 2


def test_nothing_follows_a_goodbye_that_was_passed_on() -> None:
    here, there = socket.socketpair()
    goodbye = Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False)
    with there:
        there.settimeout(20)
        endpoint = WebSocketEndpoint(here, masked=True)
        assert endpoint.send(memoryview(goodbye)) == len(goodbye)
        endpoint.close()
        assert there.recv(1000) == goodbye and there.recv(1000) == b""


@given(st.lists(st.binary(max_size=200), max_size=4), st.booleans(), st.integers(0, 900))
def test_where_a_frame_ends_is_known_however_it_was_cut(
    payloads: list[bytes], masked: bool, cut: int
) -> None:
    pieces = [Frame(Opcode.BINARY, payload).serialize(mask=masked) for payload in payloads]
    data = b"".join(pieces)
    ends = [sum(map(len, pieces[:count])) for count in range(len(pieces) + 1)]
    cut = min(cut, len(data))
    followed = FrameReader(masked=masked)
    list(followed.feed(memoryview(data[:cut])))
    assert followed.between == (cut in ends)
    list(followed.feed(memoryview(data[cut:])))
    assert followed.between


@pytest.mark.parametrize(
    ("masked", "data"),
    [
        pytest.param(
            True, sent([Frame(Opcode.BINARY, b"unmasked")], masked=False), id="no mask of a client"
        ),
        # Masks are random: an id of the bytes would be another in every process.
        pytest.param(
            False, sent([Frame(Opcode.BINARY, b"masked")], masked=True), id="a mask of a server"
        ),
        pytest.param(False, b"\xc2\x00", id="a reserved bit"),
        pytest.param(False, b"\x83\x00", id="no such kind"),
        pytest.param(False, b"\x80\x00", id="goes on with what has not begun"),
        pytest.param(False, b"\x02\x00\x82\x00", id="begins before the last has ended"),
        pytest.param(False, b"\x09\x00", id="a ping in fragments"),
        pytest.param(False, b"\x89\x7e\x00\x80", id="a long ping"),
        pytest.param(
            False, b"\x82\x7f" + (MAX_MESSAGE_BYTES + 1).to_bytes(8), id="a byte too long"
        ),
        pytest.param(False, b"\x82\x7f" + b"\xff" * 8, id="longer than a length may be"),
    ],
)
def test_what_is_no_websocket_is_not_passed_on(masked: bool, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Reframer(masked=masked).feed(memoryview(data))


def test_a_message_in_endless_fragments_is_ended_at_the_bound() -> None:
    reframer = Reframer(masked=False)
    piece = memoryview(sent([Frame(Opcode.CONT, bytes(1 << 20), False)], masked=False))
    reframer.feed(memoryview(sent([Frame(Opcode.BINARY, b"", False)], masked=False)))
    with pytest.raises(ProtocolError, match="a message of over"):
        for _ in range(10):
            reframer.feed(piece)


@given(st.binary(max_size=200))
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes) -> None:
    for masked in (False, True):
        try:
            assert len(Reframer(masked=masked).feed(memoryview(data))) <= GROWTH * len(data)
        except ProtocolError:
            continue


def test_every_mask_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def token_bytes(count: int) -> bytes:
        made.append(count)
        return os.urandom(count)

    monkeypatch.setattr("tapml_rpc.websocket.endpoint.secrets.token_bytes", token_bytes)
    Reframer(masked=False).feed(memoryview(b"\x82\x00\x82\x01a\x82\x00"))
    assert made == [4, 4, 4]
