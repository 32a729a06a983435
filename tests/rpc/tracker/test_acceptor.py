"""A tracker without descriptors: it says so, serves whom it has, and accepts again."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.rpc.tracker.doors import RunningDoor
from tests.rpc.tracker.trackers import PATIENCE_SECONDS


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process opens nothing more while the block runs."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/dev/fd").iterdir())
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        with pytest.raises(OSError) as full:
            while True:
                taken.append(os.dup(0))
        assert full.value.errno == errno.EMFILE
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number in taken:
            os.close(number)


@pytest.mark.parametrize("listener", ["relay", "websocket"])
def test_a_full_process_serves_whom_it_has_and_accepts_when_there_is_room_again(
    listener: str, capfd: pytest.CaptureFixture[str]
) -> None:
    door = RunningDoor()
    port = door.port if listener == "websocket" else door.relay[1]
    with closing(door), socket.socket() as client:
        client.settimeout(PATIENCE_SECONDS)
        with no_descriptors():
            client.connect(("127.0.0.1", port))
            # Posted after it came, so it is looked at no later.
            for _ in range(3):
                served = threading.Event()
                door.forwarder.post(served.set)
                assert served.wait(PATIENCE_SECONDS)
        client.sendall(b"nonsense\r\n\r\n")
        with suppress(ConnectionResetError):
            assert client.recv(100) == b""
    said = capfd.readouterr().err
    assert said.count("cannot accept") == 1 and "Traceback" not in said
