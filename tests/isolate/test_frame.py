"""Messages survive any way a stream may cut them, and bring their arrays."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.isolate.frame import (
    HEADER,
    INLINE_BYTES,
    Channel,
    Decoder,
    decode,
    encode,
    sealed,
    unnamed_file,
)
from tapml_targets.errors import InputError, ProtocolError

_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("$"), inner),
    max_leaves=10,
)


@given(messages=st.lists(_plain, max_size=5), data=st.data())
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[object], data: st.DataObject
) -> None:
    stream = b""
    for message in messages:
        with sealed(encode(message)) as (part, _):
            stream += part
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = Decoder()
    received: list[object] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += [message for message, _ in decoder.feed(stream[start:end])]
    assert received == messages


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("count", [3, INLINE_BYTES], ids=["inline", "as a file"])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64", ">f4"]
)
def test_an_array_keeps_its_type_and_bits(
    ends: tuple[Channel, Channel], dtype: str, count: int
) -> None:
    array = (np.arange(2 * count) % 100).reshape(2, count).astype(dtype)
    found = _sent(ends, {"a": array})["a"]
    assert (found.dtype, found.shape, found.tobytes()) == (
        array.dtype,
        array.shape,
        array.tobytes(),
    )


@pytest.mark.parametrize(
    "array",
    [np.array(0.5, np.float32), np.zeros((0, 3)), np.arange(12).reshape(3, 4).T[::2]],
    ids=["without dimensions", "without elements", "not contiguous"],
)
def test_an_array_keeps_its_shape(ends: tuple[Channel, Channel], array: npt.NDArray[Any]) -> None:
    found = _sent(ends, [array, b"after"])
    np.testing.assert_array_equal(found[0], array, strict=True)
    assert found[1] == b"after"


def test_a_received_array_can_be_written_to(ends: tuple[Channel, Channel]) -> None:
    found = _sent(ends, np.zeros(INLINE_BYTES))
    found[0] = 1
    assert found[:2].tolist() == [1, 0]


def test_a_number_of_numpy_arrives_as_a_number(ends: tuple[Channel, Channel]) -> None:
    assert _sent(ends, [np.float32(0.5), np.int64(7), np.bool_(True)]) == [0.5, 7, True]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"a": [0, {1, 2}]}, r"the message\['a'\]\[1\] is a set; a job takes and returns None"),
        ({"a": {1: "b"}}, r"the message\['a'\] has the key 1; keys must be text"),
        ([np.array([None])], r"the message\[0\] is an array of object"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_place(message: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        encode(message)


def test_a_length_beyond_the_bound_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        Decoder().feed(HEADER.pack(False, 0, INLINE_BYTES + 1))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 64,
        b"\x02" + bytes(7) + b"{}",
        b"\x18" + bytes(7) + b'[{"$":0},[[9,"<f4",[2]]]]',
        b"\x16" + bytes(7) + b'[{"$":0},[[8,"O",[1]]]]',
        b"\x0c" + bytes(7) + b'[{"$":3},[]]',
    ],
)
def test_a_body_that_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode(memoryview(body.ljust(128) if body else body))


def test_a_file_of_another_size_is_refused_and_closed() -> None:
    file = unnamed_file()
    os.write(file, b"short")
    with pytest.raises(ProtocolError, match="1000 bytes, got a file of 5"):
        Decoder().feed(HEADER.pack(True, 1, 1000), [file])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_descriptor_that_is_missing_is_noticed() -> None:
    with pytest.raises(ProtocolError, match="without its 1 descriptors"):
        Decoder().feed(HEADER.pack(True, 1, 1000))


def _sent(ends: tuple[Channel, Channel], message: Any) -> Any:
    ours, theirs = ends
    ours.send(encode(message))
    ((received, _),) = theirs.receive(wait=True)
    return received
