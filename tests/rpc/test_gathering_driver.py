"""What a driver gathers is handed on by whoever goes to do something else than enqueue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tapml_rpc import wire
from tapml_rpc.device.interpreter import Interpreter
from tapml_rpc.device.libraries import AttachedBlobs, LibraryStore
from tapml_rpc.device.session_state import Message, ServerSession
from tapml_rpc.welcome import Bounds
from tapml_targets.errors import DeviceLostError
from tests.rpc.deploy.memory_driver import MemoryDriver


class GatheringDriver(MemoryDriver):
    """Notes how many fills it was given and has not handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered = 0
        self.lost = False

    def fill(self, buffer: bytearray, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        super().fill(buffer, byte_offset, nbytes, pattern)
        self.gathered += 1

    def free(self, buffer: bytearray) -> None:
        assert self.gathered == 0, "memory is freed that work names"
        super().free(buffer)

    def flush(self) -> None:
        if self.lost and self.gathered:
            self.gathered = 0
            raise DeviceLostError("kernel 'fill' failed: the device is lost")
        self.gathered = 0


class Served:
    """A session of one client, and what it was answered."""

    def __init__(self, credit: int = 0) -> None:
        self.driver = GatheringDriver()
        self.answers: list[wire.Header] = []
        self.unfinished: list[int] = []
        self.session = ServerSession(credit)
        self.interpreter = Interpreter(
            self.driver,
            LibraryStore(self.driver, library_bytes=1, allow_native=False),
            AttachedBlobs(),
            Bounds(),
            self._send,
        )
        self._sequence = 0

    def batch(self, *commands: list[Any]) -> Iterator[None]:
        self._sequence += 1
        message = Message(self._sequence, list(commands), memoryview(b""))
        return self.interpreter.run(self.session, message)

    def _send(self, header: wire.Header, parts: object) -> None:
        self.answers.append(header)
        self.unfinished.append(self.driver.gathered)


def test_a_batch_is_answered_when_all_of_it_was_handed_on() -> None:
    served = Served()
    for _ in served.batch(["allocate", 1, 64], ["fill", 1, 0, 64, b"a"], ["fill", 1, 0, 8, b"b"]):
        raise AssertionError("nothing of it waits")
    assert served.unfinished == [0] and "error" not in served.answers[0]


def test_what_comes_before_a_read_that_waits_for_its_client_begins() -> None:
    served = Served(credit=0)
    nbytes = 4 << 20
    batch = served.batch(
        ["allocate", 1, nbytes], ["fill", 1, 0, nbytes, b"a"], ["read", 1, 0, nbytes]
    )
    next(batch)
    assert served.driver.gathered == 0 and served.answers == []
    served.session.job = batch
    served.interpreter.release(served.session)
    assert served.driver.held == 0


def test_what_fails_as_it_is_handed_on_poisons_with_the_batchs_last_command() -> None:
    served = Served()
    served.driver.lost = True
    for _ in served.batch(["allocate", 1, 64], ["fill", 1, 0, 64, b"a"]):
        raise AssertionError("nothing of it waits")
    error = served.answers[0]["error"]
    assert (error["kind"], error["index"]) == ("DeviceLostError", 1)
    assert error["command"].startswith("fill(1, 0, 64") and "kernel 'fill'" in error["message"]


def test_a_batch_that_is_given_up_leaves_no_work_on_memory_that_is_freed() -> None:
    served = Served()
    assert list(served.batch(["allocate", 1, 64])) == []
    served.driver.fill(bytearray(64), 0, 64, b"a")
    served.driver.lost = True
    served.interpreter.release(served.session)
    assert served.driver.held == 0
