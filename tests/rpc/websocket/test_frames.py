"""One encoding of a message, taken apart where it lies, and refused in words otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_rpc import wire
from tapml_rpc.websocket import frames
from tapml_targets.errors import ProtocolError
from tests.rpc.test_golden import from_json

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "websocket.json").read_text("utf-8"))
MESSAGES: list[dict[str, Any]] = GOLDEN["messages"]

packed_headers = st.binary(max_size=100)
chunks = st.binary(max_size=100)


@given(packed_headers, chunks)
def test_what_is_joined_is_what_is_split(packed: bytes, chunk: bytes) -> None:
    found, rest = frames.split(frames.join(packed, chunk))
    assert (bytes(found), bytes(rest)) == (packed, chunk)


@given(packed_headers, chunks.filter(bool))
def test_a_chunk_begins_at_a_multiple_of_eight_bytes(packed: bytes, chunk: bytes) -> None:
    message = frames.join(packed, chunk)
    assert (len(message) - len(chunk)) % 8 == 0
    assert len(frames.head(packed, len(chunk))) == len(message) - len(chunk)


@given(packed_headers)
def test_without_a_chunk_nothing_follows_the_header(packed: bytes) -> None:
    assert frames.join(packed) == len(packed).to_bytes(4, "little") + packed


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda n, b: n.to_bytes(4, "little") + b, st.integers(0, 40), st.binary(max_size=60)
    )
)
def test_whatever_is_taken_has_one_encoding(message: bytes) -> None:
    try:
        packed, chunk = frames.split(message)
    except ProtocolError:
        return
    assert frames.join(bytes(packed), chunk) == message


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"", "0 bytes"),
        (b"\x01\x00\x00", "3 bytes"),
        (b"\x05\x00\x00\x00\x80", "header of 5 bytes is announced, 1 follow"),
        (b"\xff\xff\xff\xff", "at most 1048576"),
        (b"\x01\x00\x00\x00\x80\x00\x00", "2 bytes of padding without a chunk"),
        (b"\x01\x00\x00\x00\x80\x00\x00\x00", "3 bytes of padding without a chunk"),
        (b"\x01\x00\x00\x00\x80\x00\x01\x00chunk", "must be zero"),
        (bytes(8 + wire.MAX_CHUNK_BYTES + 1), "a chunk of 4194305 bytes"),
    ],
)
def test_a_refusal_says_what_is_wrong(message: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        frames.split(message)


def test_a_chunk_over_the_bound_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="in several messages"):
        frames.head(b"", wire.MAX_CHUNK_BYTES + 1)


def test_the_largest_message_is_within_the_bound_of_a_message() -> None:
    header = bytes(wire.MAX_HEADER_BYTES)
    size = len(frames.head(header, wire.MAX_CHUNK_BYTES)) + wire.MAX_CHUNK_BYTES
    assert size <= frames.MAX_MESSAGE_BYTES


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["name"])
def test_a_vector_is_what_we_write_and_read(message: dict[str, Any]) -> None:
    header, whole = from_json(message["header"]), bytes.fromhex(message["message"])
    chunk = bytes.fromhex(message["chunk"])
    assert frames.join(wire.pack(header), chunk) == whole
    packed, rest = frames.split(whole)
    assert (wire.unpack(packed), bytes(rest)) == (header, chunk)


@pytest.mark.parametrize("message", GOLDEN["refused"], ids=lambda message: message["name"])
def test_a_vector_that_is_no_message_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        frames.split(bytes.fromhex(message["message"]))
