"""Which answer is whose, and what counts against a session's windows until it comes."""

from __future__ import annotations

from typing import Any

import pytest

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.transport import PendingRead, Ticket, Unanswered
from tapml_targets.errors import DeviceLostError, InputError, ProtocolError

NBYTES = 16


def asked(unanswered: Unanswered, read: PendingRead | None = None, chunk_bytes: int = 0) -> Ticket:
    ticket = unanswered.next(chunk_bytes, {} if read is None else {0: read})
    unanswered.add(ticket)
    return ticket


def take(
    unanswered: Unanswered, fields: dict[str, Any], chunk: bytes | bytearray = b"", **more: bool
) -> tuple[int, Any]:
    return unanswered.take(wire.pack(fields), memoryview(chunk), copy=more.get("copy", False))


def test_a_message_counts_until_it_is_answered() -> None:
    unanswered = Unanswered()
    first, second = (asked(unanswered, chunk_bytes=size) for size in (100, 20))
    assert (len(unanswered), unanswered.upload_bytes) == (2, 120)
    assert take(unanswered, {"type": "done", "sequence": 2}) == (0, None)
    assert second.done and not first.done
    assert (len(unanswered), unanswered.upload_bytes) == (1, 100)
    take(unanswered, {"type": "blob-done", "sequence": 1, "value": 7})
    assert first.value == 7
    assert not unanswered and not unanswered.upload_bytes


def test_a_message_that_was_never_sent_does_not_count_and_its_number_is_not_used_again() -> None:
    unanswered = Unanswered()
    unanswered.next(100, {})
    assert not unanswered and not unanswered.upload_bytes
    assert asked(unanswered).sequence == unanswered.sequence == 2


@pytest.mark.parametrize("placed", [False, True], ids=["copied", "read to its place"])
def test_pieces_of_a_read_take_credit_whichever_way_they_come(placed: bool) -> None:
    unanswered, read = Unanswered(), PendingRead(NBYTES)
    asked(unanswered, read)
    data = bytes(range(NBYTES))
    for start in (0, NBYTES // 2):
        fields = {"type": "data", "sequence": 1, "index": 0, "offset": start}
        piece = data[start : start + NBYTES // 2]
        if placed:
            memory = unanswered.place(wire.pack(fields), len(piece))
            memory[:] = piece
            # What was placed is told by the chunk; the header has been read.
            assert unanswered.take(b"", memory, copy=False) == (len(piece), None)
        else:
            assert take(unanswered, fields, piece) == (len(piece), None)
    take(unanswered, {"type": "done", "sequence": 1, "results": [[0, NBYTES]]})
    assert bytes(read.result()) == data


def test_an_answers_chunk_is_copied_where_its_memory_is_used_again() -> None:
    unanswered, read = Unanswered(), PendingRead(NBYTES)
    asked(unanswered, read)
    memory = bytearray(b"a" * NBYTES)
    fields = {"type": "done", "sequence": 1, "results": [[0, [0, NBYTES]]]}
    take(unanswered, fields, memory, copy=True)
    memory[:] = b"b" * NBYTES
    assert bytes(read.result()) == b"a" * NBYTES


def test_what_is_for_nobody_changes_nothing_and_its_bytes_have_a_place() -> None:
    unanswered = Unanswered()
    fields = {"type": "data", "sequence": 9, "index": 0, "offset": 0}
    assert len(unanswered.place(wire.pack(fields), 5)) == 5
    assert unanswered.take(b"", memoryview(b"12345"), copy=False) == (0, None)
    assert take(unanswered, {"type": "done", "sequence": 9}) == (0, None)


def test_bytes_that_no_read_asked_for_are_refused() -> None:
    unanswered = Unanswered()
    asked(unanswered)
    with pytest.raises(ProtocolError, match="no read asked for"):
        take(unanswered, {"type": "data", "sequence": 1, "index": 0, "offset": 0}, b"1")


def test_a_refusal_is_its_messages_a_loss_the_sessions_and_the_rest_the_callers() -> None:
    unanswered = Unanswered()
    ticket, other = asked(unanswered), asked(unanswered)

    def error(failure: Exception, sequence: int) -> dict[str, Any]:
        return {"type": "error", "sequence": sequence, "error": failure_to_wire(failure)}

    assert take(unanswered, error(InputError("no such buffer"), 1)) == (0, None)
    assert isinstance(ticket.failure, InputError)
    _, failure = take(unanswered, error(InputError("who are you"), 9))
    assert isinstance(failure, InputError)
    _, failure = take(unanswered, error(DeviceLostError("it is gone"), 2))
    assert isinstance(failure, DeviceLostError)
    assert not other.done, "the session's end says what had been sent"
