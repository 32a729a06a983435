"""A failed command poisons its session: what is skipped, what is said, what clears it."""

from __future__ import annotations

import pytest

from tapml_rpc import wire
from tapml_rpc.client import Session
from tapml_targets.errors import CompileError, InputError
from tests.rpc.libraries import add_one_library
from tests.rpc.peers import RawPeer

TOO_MUCH = 1 << 62


def test_the_first_error_is_reported_and_later_commands_are_skipped(session: Session) -> None:
    kept = session.allocate(4)
    session.write(kept, b"good")
    session.fence()
    session.allocate(TOO_MUCH)
    session.write(kept, b"late")
    with pytest.raises(InputError, match="session") as first:
        session.read(kept)
    with pytest.raises(InputError) as second:
        session.fence()
    assert str(first.value) == str(second.value)
    assert first.value.command.startswith("allocate(")  # type: ignore[attr-defined]
    session.reset()
    assert bytes(session.read(kept)) == b"good"


def test_reads_of_a_poisoned_batch_raise_its_first_error(session: Session) -> None:
    buffer = session.allocate(4)
    session.fill(buffer, b"a")
    with pytest.raises(InputError, match="its bound is"), session.batch() as batch:
        before = batch.read(buffer)
        batch.allocate(TOO_MUCH)
        after = batch.read(buffer)
    assert bytes(before.result()) == b"aaaa"
    with pytest.raises(InputError, match="its bound is"):
        after.result()


def test_memory_can_be_given_back_on_a_poisoned_stream(peer: RawPeer) -> None:
    peer.batch(["allocate", 1, 1 << 20])
    answer, _ = peer.batch(["read", 99, 0, 1], ["free", 1], ["fence"])
    assert answer["error"]["kind"] == "InputError"
    assert peer.ping()["device_bytes"] == 0


def test_a_library_that_does_not_load_poisons_nothing_and_loads_on_a_poisoned_stream(
    session: Session,
) -> None:
    kept = session.allocate(4)
    with pytest.raises(CompileError):
        session.upload(add_one_library(b"this is no OpenCL"))
    session.write(kept, b"good")
    assert bytes(session.read(kept)) == b"good"
    session.allocate(TOO_MUCH)
    with pytest.raises(InputError, match="its bound is"):
        session.fence()
    assert session.upload(add_one_library()).operators == ("add_one",)
    with pytest.raises(InputError, match="its bound is"):
        session.fence()


def test_an_error_names_its_command_and_where_it_happened(peer: RawPeer) -> None:
    error = peer.batch(["allocate", 1, 8], ["fence"], ["read", 1, 4, 8])[0]["error"]
    assert error["index"] == 2
    assert error["command"] == "read(1, 4, 8)"
    assert "bytes 4 to 12 lie outside buffer 1 of 8 bytes" in error["message"]
    assert "Traceback" in error["traceback"]


def test_a_handle_whose_allocation_was_skipped_says_so(session: Session) -> None:
    session.allocate(TOO_MUCH)
    skipped = session.allocate(16)
    with pytest.raises(InputError):
        session.fence()
    session.reset()
    session.write(skipped, b"abc")
    with pytest.raises(InputError, match="failed or was skipped on a poisoned session"):
        session.fence()


def test_cancelled_batches_do_not_run(peer: RawPeer) -> None:
    peer.batch(["allocate", 1, 4], ["fill", 1, 0, 4, b"a"])
    cancel = {"type": "cancel", "sequence": peer.sequence + 1}
    peer.control.send(_packed(peer, cancel))
    peer.ping()
    answer, _ = peer.batch(["fill", 1, 0, 4, b"b"])
    assert answer["error"]["message"].startswith("cancelled by the client")
    answer, chunk = peer.batch(["reset"], ["read", 1, 0, 4])
    assert (answer["results"], chunk) == ([[1, [0, 4]]], b"aaaa")


def test_a_cancelled_batch_still_gives_memory_back(peer: RawPeer) -> None:
    peer.batch(["allocate", 1, 1 << 20])
    peer.control.send(_packed(peer, {"type": "cancel", "sequence": peer.sequence + 1}))
    peer.ping()
    answer, _ = peer.batch(["free", 1], ["fence"])
    assert answer["error"]["index"] == 1
    peer.wait_for(device_bytes=0)
    peer.batch(["reset"])


def test_a_session_cancels_what_it_has_sent(session: Session) -> None:
    library = session.upload(add_one_library())
    session.cancel()
    session.fence()
    assert library.operators == ("add_one",)


def _packed(peer: RawPeer, header: dict[str, object]) -> bytes:
    return wire.pack({**header, "session": peer.welcome["session"]})
