"""ZMTP as bytes: what we write is what we read, and anything else is refused, never misread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_rpc.zmtp import framing
from tapml_targets.errors import ProtocolError


@given(
    st.integers(0, 1 << 40),
    st.sampled_from([0, framing.MORE, framing.COMMAND]),
    st.binary(max_size=12),
)
def test_a_frame_head_is_read_as_it_was_written(nbytes: int, flags: int, after: bytes) -> None:
    head = framing.frame_head(nbytes, flags)
    found, length, size = framing.parse_head(head + after, 0, len(head + after))
    assert (found & ~framing.LONG, length, size) == (flags, nbytes, len(head))


@given(st.integers(0, 1 << 40), st.data())
def test_half_a_head_is_not_there_yet(nbytes: int, data: st.DataObject) -> None:
    head = framing.frame_head(nbytes)
    end = data.draw(st.integers(0, len(head) - 1))
    assert framing.parse_head(head, 0, end) == (0, 0, 0)


@given(st.integers(8, 255), st.binary(min_size=9, max_size=9))
def test_reserved_flags_are_refused(flags: int, rest: bytes) -> None:
    with pytest.raises(ProtocolError, match="flags"):
        framing.parse_head(bytes((flags,)) + rest, 0, 10)


def test_our_greeting_is_taken_and_changes_to_it_are_refused() -> None:
    framing.check_greeting(framing.GREETING)
    for place, what in ((0, "greet"), (9, "greet"), (10, "greet"), (12, "mechanism")):
        wrong = bytearray(framing.GREETING)
        wrong[place] = 0x40 if place == 12 else 0
        with pytest.raises(ProtocolError, match=what):
            framing.check_greeting(bytes(wrong))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_ready_command_or_refused(body: bytes) -> None:
    try:
        framing.check_ready(body, b"ROUTER")
    except ProtocolError:
        return
    name, data = framing.parse_command(body)
    assert name == b"READY"
    assert b"DEALER" in data or b"REQ" in data or b"ROUTER" in data


def test_a_socket_that_does_not_go_with_ours_is_refused() -> None:
    dealer, sub = (framing.ready(kind)[2:] for kind in (b"DEALER", b"SUB"))
    framing.check_ready(dealer, b"ROUTER")
    with pytest.raises(ProtocolError, match="SUB socket, expected DEALER"):
        framing.check_ready(sub, b"ROUTER")
    with pytest.raises(ProtocolError, match="DEALER socket, expected ROUTER"):
        framing.check_ready(dealer, b"DEALER")


@given(st.binary(max_size=40))
def test_a_ping_is_answered_by_its_context_or_refused(ping: bytes) -> None:
    if 2 <= len(ping) <= 18:
        assert framing.pong(ping) == framing.command(b"PONG", ping[2:])
    else:
        with pytest.raises(ProtocolError):
            framing.pong(ping)
