"""Messages survive any way a stream may cut them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.isolate.frame import LENGTH, MAX_BYTES, Decoder, encode
from tapml_targets.errors import ProtocolError

_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(messages=st.lists(_plain, max_size=5), data=st.data())
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[object], data: st.DataObject
) -> None:
    stream = b"".join(map(encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = Decoder()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
    assert received == messages


def test_a_length_beyond_the_bound_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        Decoder().feed(LENGTH.pack(MAX_BYTES + 1))


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(ProtocolError, match="not msgpack"):
        Decoder().feed(LENGTH.pack(1) + b"\xc1")
