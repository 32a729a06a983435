"""Calls that are recorded once and run by their handle."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tapml_rpc.client import RemoteTensor, Session
from tapml_rpc.remote import RemoteCall, RemoteLibrary
from tapml_targets.errors import InputError
from tapml_targets.library_format import library_hash, pack
from tests.rpc.libraries import add_one_library
from tests.rpc.peers import RawPeer

COUNT = 300
LIBRARY = add_one_library()


class Adder:
    """``add_two`` recorded on two buffers of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.library: RemoteLibrary = session.upload(LIBRARY)
        self.tensors = [
            RemoteTensor(session.allocate(4 * COUNT), 0, (COUNT,), "float32") for _ in range(2)
        ]
        self.call: RemoteCall = session.record(self.library, "add_two", self.tensors)

    def run(self, value: float) -> float:
        """What the first element comes to; all are the same."""
        given, output = (tensor.buffer for tensor in self.tensors)
        with self.session.batch() as batch:
            batch.write(given, np.full(COUNT, value, np.float32))
            batch.run(self.call)
            read = batch.read(output)
        found = np.frombuffer(read.result(), np.float32)
        assert (found == found[0]).all()
        return float(found[0])


def test_a_recorded_call_runs_on_what_its_memory_holds_then(session: Session) -> None:
    adder = Adder(session)
    assert [adder.run(value) for value in (1, 5, -2, 8)] == [3, 7, 0, 10]


def test_recorded_calls_of_one_kernel_keep_their_own_memory(session: Session) -> None:
    first, second = Adder(session), Adder(session)
    for value in range(3):
        assert first.run(value) == value + 2
        assert second.run(10 * value) == 10 * value + 2


def test_a_timed_run_says_how_long_its_kernels_took(session: Session) -> None:
    adder = Adder(session)
    with session.batch() as batch:
        pending = batch.run(adder.call, timed=True)
    nanoseconds = pending.result().kernel_nanoseconds
    assert nanoseconds is not None and 0 < nanoseconds < 1e9


def test_a_recorded_call_outlives_workspaces_that_move(session: Session) -> None:
    adder = Adder(session)
    assert adder.run(1) == 3
    large = [RemoteTensor(session.allocate(4 << 20), 0, (1 << 20,), "float32") for _ in range(2)]
    session.call(adder.library, "add_two", large)
    assert [adder.run(value) for value in (2, 3, 4)] == [4, 5, 6]


def test_a_recorded_call_whose_buffer_was_freed_is_refused(session: Session) -> None:
    adder = Adder(session)
    session.free(adder.tensors[1].buffer)
    # Memory of the same size is what the server hands out again.
    again = session.allocate(4 * COUNT)
    gone = f"uses buffer {adder.tensors[1].buffer.handle}: it is gone"
    with pytest.raises(InputError, match=gone), session.batch() as batch:
        batch.run(adder.call)
    session.reset()
    session.free(again)


def test_a_recorded_call_does_not_outlive_its_library(session: Session) -> None:
    adder = Adder(session)
    session.unload(adder.library)
    with pytest.raises(InputError, match="was unloaded"), session.batch() as batch:
        batch.run(adder.call)


def test_a_recorded_call_nobody_refers_to_is_forgotten(session: Session) -> None:
    adder = Adder(session)
    handle = adder.call.handle
    session.fence()
    del adder
    gc.collect()
    session.fence()
    session._add(["run", handle, {}])
    with pytest.raises(InputError, match=f"no recorded call has the handle {handle}"):
        session.fence()


def test_a_recording_that_does_not_fit_is_refused_where_it_is_made(session: Session) -> None:
    adder = Adder(session)
    short = RemoteTensor(adder.tensors[0].buffer, 0, (COUNT + 1,), "float32")
    session.record(adder.library, "add_two", [short, adder.tensors[1]])
    with pytest.raises(InputError, match="add_two: parameter"):
        session.fence()


def test_a_run_on_a_poisoned_stream_is_skipped(session: Session) -> None:
    adder = Adder(session)
    assert adder.run(1) == 3
    session._add(["read", 999_999, 0, 4])
    with pytest.raises(InputError, match="999999"):
        adder.run(7)
    session.reset()
    assert np.frombuffer(session.read(adder.tensors[1].buffer), np.float32)[0] == 3
    assert adder.run(7) == 9


def test_a_session_holds_a_bounded_number_of_recorded_calls(peer: RawPeer) -> None:
    packed = pack(LIBRARY)
    digest = library_hash(packed)
    peer.batch(["upload", digest, len(packed), 0, len(packed), 0], chunk=packed)
    peer.batch(["load", 1, digest], ["allocate", 2, 40], ["allocate", 3, 40])
    tensors = [[2, 0, [10], "float32"], [3, 0, [10], "float32"]]
    record = [["record", 100 + index, 1, "add_one", tensors, {}] for index in range(65)]
    error = peer.batch(*record)[0]["error"]
    assert error["index"] == 64 and "64 recorded calls" in error["message"]
    answer, _ = peer.batch(["reset"], ["free", 100], ["record", 999, 1, "add_one", tensors, {}])
    assert "error" not in answer
    peer.batch(["free", 102])
    for command, expected in (
        (["run", 100, {}], "no recorded call"),
        (["run", 101, []], "the options of a run are a map"),
        (["record", 101, 1, "add_one", tensors, {}], "is in use"),
        (["record", 400, 9, "add_one", tensors, {}], "no Library has the handle 9"),
        (["record", 400, 1, "add_one", [[2, 0]], {}], "a tensor is"),
    ):
        error = peer.batch(["reset"], command)[0]["error"]
        assert expected in error["message"], command
