"""What a child process prints costs its parent a fixed amount of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tapml.devices.browser import OwnTracker
from tapml_rpc.failures import LOG_CHARACTERS
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_targets.child_process import OutputTail
from tapml_targets.ranking import find_device
from tests.rpc.printing import print_in
from tests.rpc.strangers import memory_bytes

MEBIBYTE = 1 << 20
ENDLESS = b"x" * (64 * MEBIBYTE) + b" the end"


def tail_of(data: bytes, most_bytes: int) -> str:
    """What is kept of `data`."""
    reader, writer = os.pipe()
    tail = OutputTail(os.fdopen(reader, "rb"), most_bytes)
    with os.fdopen(writer, "wb") as output:
        output.write(data)
    tail.wait(60)
    return tail.text()


def test_the_end_is_kept() -> None:
    assert tail_of(b"first\nsecond\n", 100) == "first\nsecond"
    assert tail_of(b"first\nsecond\n", 8) == "second"
    assert (
        tail_of("\N{SNOWMAN}".encode() * 10, 8)
        == "\N{REPLACEMENT CHARACTER}" * 2 + "\N{SNOWMAN}" * 2
    )
    assert tail_of(b"", 8) == ""


def test_what_was_just_written_is_in_the_text() -> None:
    reader, writer = os.pipe()
    tail = OutputTail(os.fdopen(reader, "rb"), 100)
    for number in range(1000):
        os.write(writer, b"%d\n" % number)
        assert tail.text().endswith(str(number))
    os.close(writer)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Check that this process grows by far less than is printed."""
    before = memory_bytes(os.getpid())
    yield
    assert memory_bytes(os.getpid()) - before < 16 * MEBIBYTE


def test_a_worker_that_prints_no_newline_fills_no_memory() -> None:
    worker = WorkerProcess(find_device("cpu"), allow_native=False)
    try:
        worker.wait_until_open()
        with bounded_memory():
            print_in(worker.pid, ENDLESS)
        assert worker.tail().endswith("xxx the end")
        assert len(worker.last_words()["log"]) <= LOG_CHARACTERS
    finally:
        worker.pipe.close()
        worker.end(kill=True)


def test_an_own_tracker_that_prints_no_newline_fills_no_memory() -> None:
    with OwnTracker() as tracker, bounded_memory():
        print_in(tracker._process.pid, ENDLESS, 2)
