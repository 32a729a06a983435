"""What a worker is given of a blob: memory to read, for as long as somebody reads it."""

from __future__ import annotations

import gc
import os

import pytest

from tapml_rpc.blobs.memory import BlobMemory
from tapml_rpc.device.libraries import AttachedBlobs, LibraryStore
from tapml_targets.errors import InputError, ProtocolError
from tests.rpc.blobs.contents import content
from tests.rpc.deploy.memory_driver import MemoryDriver

DATA = content(1, 9000)


def descriptor(data: bytes = DATA) -> int:
    """A descriptor of sealed memory, as it comes over a socket: nobody else has it."""
    memory = BlobMemory(len(data))
    memory.write(0, memoryview(data))
    memory.seal()
    return os.dup(memory.fileno())


def test_what_is_received_can_be_read_and_not_written() -> None:
    blobs = AttachedBlobs()
    blobs.receive("a", descriptor(), len(DATA))
    assert len(blobs) == 1
    assert bytes(blobs.view("a")) == DATA
    assert blobs.view("a").readonly


def test_a_window_lies_inside() -> None:
    blobs = AttachedBlobs()
    blobs.receive("a", descriptor(), len(DATA))
    assert blobs.window("a", 8000, 1000) == DATA[8000:]
    with pytest.raises(InputError, match="bytes 8000 to 9001 lie outside blob a of 9000 bytes"):
        blobs.window("a", 8000, 1001)


def test_what_was_let_go_of_is_there_for_who_still_reads_it() -> None:
    blobs = AttachedBlobs()
    blobs.receive("a", descriptor(), len(DATA))
    reading = blobs.view("a")
    blobs.receive("a", -1, 0)
    assert not len(blobs)
    assert bytes(reading) == DATA
    with pytest.raises(InputError, match="is not attached to this session"):
        blobs.view("a")


def test_a_library_of_more_bytes_than_a_server_takes_is_not_looked_at() -> None:
    blobs = AttachedBlobs()
    blobs.receive("a", descriptor(), len(DATA))
    store = LibraryStore(MemoryDriver(), library_bytes=8999, allow_native=False)
    with pytest.raises(InputError, match="of 9000 bytes; this server takes at most 8999"):
        store.load("a", blobs)


def test_letting_go_of_what_is_not_there_does_nothing() -> None:
    AttachedBlobs().receive("a", -1, 0)


@pytest.mark.parametrize("nbytes", [0, 8999, 9001, 1 << 40])
def test_memory_of_another_size_is_refused(nbytes: int) -> None:
    blobs = AttachedBlobs()
    with pytest.raises(ProtocolError, match=f"of {nbytes} bytes came with 9000"):
        blobs.receive("a", descriptor(), nbytes)
    assert not len(blobs)


def test_nothing_is_left_open() -> None:
    # What an earlier test left is not to be collected in between.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    blobs = AttachedBlobs()
    for number in range(100):
        blobs.receive(str(number), descriptor(), len(DATA))
        if number % 2:
            blobs.receive(str(number), -1, 0)
    blobs.close()
    # A thread of an earlier test may have ended meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - a count
