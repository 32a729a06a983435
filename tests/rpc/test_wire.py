"""Headers within bounds, and nothing else."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_rpc import wire
from tapml_targets.errors import ProtocolError

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), plain))
def test_a_header_comes_back_as_it_was(header: dict[str, object]) -> None:
    assert wire.unpack(wire.pack(header)) == header


@given(st.binary(max_size=200))
def test_any_bytes_give_a_header_or_a_protocol_error(data: bytes) -> None:
    try:
        header = wire.unpack(data)
    except ProtocolError:
        return
    assert isinstance(header, dict)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x80",
        msgpack.packb([1, 2]),
        msgpack.packb({1: 2}),
        msgpack.packb({"t": msgpack.ExtType(1, b"x")}),
        msgpack.packb({"t": msgpack.Timestamp(1)}),
        msgpack.packb({"s": "x" * (wire.MAX_STRING_BYTES + 1)}),
        msgpack.packb({"a": [0] * (wire.MAX_ARRAY + 1)}),
        b"\x81\xa1a" + b"\x91" * 5000 + b"\xc0",
        b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\xd9\x02\xff\xfe",
        b"\x80" * (wire.MAX_HEADER_BYTES + 1),
    ],
    ids=[
        "nothing",
        "two-values",
        "no-map",
        "number-as-key",
        "extension",
        "timestamp",
        "long-string",
        "long-array",
        "deep",
        "announced-array",
        "no-utf8",
        "long-header",
    ],
)
def test_what_is_out_of_bounds_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.unpack(data)


def test_a_chunk_has_at_most_4_mib() -> None:
    wire.check_chunk(wire.MAX_CHUNK_BYTES)
    with pytest.raises(ProtocolError, match="a chunk of 4194305 bytes; at most 4194304"):
        wire.check_chunk(wire.MAX_CHUNK_BYTES + 1)


def test_a_header_no_peer_would_take_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="send fewer commands per batch"):
        wire.pack({"x": b"x" * wire.MAX_HEADER_BYTES})


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None, 1 << 63])
def test_integers_are_whole_numbers_in_range(value: object) -> None:
    with pytest.raises(ProtocolError, match="handle must be an integer"):
        wire.integer(value, "handle")


@given(st.integers(0, 1 << 40))
def test_payloads_start_at_multiples_of_eight(position: int) -> None:
    assert wire.aligned(position) % 8 == 0
    assert 0 <= wire.aligned(position) - position < 8
