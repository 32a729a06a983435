"""A read that the device fails: the memory that its bytes were to lie in is there for the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tapml_rpc import wire
from tapml_rpc.device.commands import PieceMemory
from tapml_rpc.device.interpreter import Interpreter
from tapml_rpc.device.libraries import AttachedBlobs, LibraryStore
from tapml_rpc.device.session_state import Message, ServerSession
from tapml_rpc.supervisor.pipe import Ring, make_memory
from tapml_rpc.welcome import Bounds
from tests.rpc.deploy.memory_driver import MemoryDriver

RING = 8 << 20


class FailingReads(MemoryDriver):
    """A device that takes what it is given and gives nothing back."""

    def read_into(self, buffer: bytearray, byte_offset: int, target: memoryview) -> None:
        raise OSError("the device reads nothing")


class RingPieces(PieceMemory):
    """Memory of a ring, as a worker has it."""

    def __init__(self) -> None:
        self.ring = Ring(make_memory(RING, "test"))
        self.taken = 0

    def take(self) -> memoryview:
        return self.answer(1 << 20)

    def answer(self, nbytes: int) -> memoryview:
        room = self.ring.reserve(nbytes)
        assert room is not None, "the ring is full of what nobody was sent"
        self.taken, memory = room
        return memory

    def give_back(self) -> None:
        self.ring.trim(self.taken, 0)


@pytest.fixture
def pieces() -> Iterator[RingPieces]:
    made = RingPieces()
    yield made
    made.ring.close()


@pytest.mark.parametrize("nbytes", [1 << 20, 6 << 20], ids=["in the answer", "streamed"])
def test_reads_that_fail_leave_the_ring_as_it_was(pieces: RingPieces, nbytes: int) -> None:
    bounds, driver = Bounds(), FailingReads()
    answers: list[wire.Header] = []
    interpreter = Interpreter(
        driver,
        LibraryStore(driver, library_bytes=1, allow_native=False),
        AttachedBlobs(),
        bounds,
        lambda header, parts: answers.append(header),
        pieces=pieces,
    )
    session = ServerSession(bounds.download_window)

    def run(sequence: int, *commands: list[Any]) -> None:
        batch = Message(sequence, list(commands), memoryview(b""))
        for _ in interpreter.run(session, batch):
            raise AssertionError("there is credit for all of it")

    run(1, ["allocate", 1, nbytes])
    for sequence in range(2, 2 + 3 * RING // nbytes):
        run(sequence, ["reset"], ["read", 1, 0, nbytes])
    assert [bool(each.get("error")) for each in answers] == [False] + [True] * (len(answers) - 1)
    interpreter.release(session)
