"""Calls of programs: checked and bound to their memory once, and again where that is another."""

from __future__ import annotations

import numpy as np
import pytest

from tapml.package.in_process import InProcessTransport, open_in_process
from tapml_rpc.client import RemoteTensor, Session
from tapml_rpc.device.commands import MAX_BOUND
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import InputError
from tapml_targets.ranking import find_device
from tests.conftest import RequireDevice
from tests.rpc.libraries import add_one_library

COUNT = 300
LIBRARY = add_one_library()


class Adder:
    """``add_two`` in a program, on two buffers of a session."""

    def __init__(self, session: Session, name: str = "add") -> None:
        self.session = session
        self.library: RemoteLibrary = session.upload(LIBRARY)
        self.tensors = [
            RemoteTensor(session.allocate(4 * COUNT), 0, (COUNT,), "float32") for _ in range(2)
        ]
        with session.program(name) as self.program:
            self.program.call(self.library, "add_two", self.tensors)

    def run(self, value: float) -> float:
        """What the first element comes to; all are the same."""
        given, output = (tensor.buffer for tensor in self.tensors)
        with self.session.batch() as batch:
            batch.write(given, np.full(COUNT, value, np.float32))
            batch.execute(self.program)
            read = batch.read(output)
        found = np.frombuffer(read.result(), np.float32)
        assert (found == found[0]).all()
        return float(found[0])


def test_a_call_runs_on_what_its_memory_holds_then(session: Session) -> None:
    adder = Adder(session)
    assert [adder.run(value) for value in (1, 5, -2, 8)] == [3, 7, 0, 10]


def test_calls_of_one_kernel_keep_their_own_memory(session: Session) -> None:
    first, second = Adder(session, "first"), Adder(session, "second")
    for value in range(3):
        assert first.run(value) == value + 2
        assert second.run(10 * value) == 10 * value + 2


def test_a_call_outlives_workspaces_that_move(session: Session) -> None:
    adder = Adder(session)
    assert adder.run(1) == 3
    large = [RemoteTensor(session.allocate(4 << 20), 0, (1 << 20,), "float32") for _ in range(2)]
    session.call(adder.library, "add_two", large)
    assert [adder.run(value) for value in (2, 3, 4)] == [4, 5, 6]


def test_a_call_whose_buffer_was_freed_is_refused(session: Session) -> None:
    adder = Adder(session)
    assert adder.run(1) == 3
    gone = adder.tensors[1].buffer
    session.free(gone)
    # Memory of the same size is what the server hands out again.
    again = session.allocate(4 * COUNT)
    for _ in range(2):
        with pytest.raises(InputError, match=f"no buffer has the handle {gone.handle}"):
            session.execute(adder.program)
        session.reset()
    session.free(again)


def test_a_call_does_not_outlive_its_library(session: Session) -> None:
    adder = Adder(session)
    assert adder.run(1) == 3
    session.unload(adder.library)
    with pytest.raises(InputError, match="no Library has the handle"):
        session.execute(adder.program)


def test_a_call_that_does_not_fit_is_refused_where_it_runs(session: Session) -> None:
    adder = Adder(session)
    short = RemoteTensor(adder.tensors[0].buffer, 0, (COUNT + 1,), "float32")
    with session.program("short") as program:
        program.call(adder.library, "add_two", [short, adder.tensors[1]])
    with pytest.raises(InputError, match="add_two: parameter"):
        session.execute(program)


def test_calls_are_bound_once_and_a_bounded_number_of_them(require_device: RequireDevice) -> None:
    require_device("opencl")
    with open_in_process(find_device("opencl")) as session:
        transport = session._link
        assert isinstance(transport, InProcessTransport)
        bound = transport._session.bound
        library = session.upload(LIBRARY)
        tensors = [RemoteTensor(session.allocate(40), 0, (10,), "float32") for _ in range(2)]
        with session.program("many") as program:
            for _ in range(MAX_BOUND + 3):
                program.call(library, "add_one", tensors)
        session.execute(program)
        assert len(bound) == MAX_BOUND
        with session.program("one") as one:
            one.call(library, "add_one", tensors)
        session.execute(one)
        (kept,) = (each for (name, _), each in bound.items() if name == "one")
        session.free(session.allocate(8))
        session.execute(one)
        assert bound["one", 0] is kept
        session._add(["forget", "one"])
        session.fence()
        assert ("one", 0) not in bound
