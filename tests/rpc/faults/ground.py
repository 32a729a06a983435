"""What the tests of faults stand on: a real server over both bindings, and what a test does there.

Every fault is met over each binding of one server, and each test ends with an account: what there
is beyond what it found at its beginning is a leak.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from scripts.processes import workers
from scripts.soak_runtime import Bookkeeper
from scripts.wire_fuzz.bindings import address_of
from scripts.wire_fuzz.server import ServerUnderTest
from tapml_rpc.client import RemoteTensor, Session, connect
from tapml_targets.errors import RemoteError
from tests.rpc.libraries import ADD_ONE, NEVER_ENDS, add_one_library
from tests.rpc.peers import RawPeer
from tests.rpc.websocket.peers import WebSocketPeer

BINDINGS = ("zmq", "websocket")
PATIENCE_SECONDS = 60.0
ELEMENTS = 256
Peer: TypeAlias = "RawPeer | WebSocketPeer"


class Served:
    """``tapml rpc serve`` as its clients and the system see it.

    Attributes
    ----------
    books
        Who looks at it.
    pid
        The supervisor's.
    """

    def __init__(self, server: ServerUnderTest, books: Bookkeeper) -> None:
        self.server = server
        self.books = books
        self.pid = server.process.pid
        # What waits is the first session's: all others than that have one.
        self._in_use = {books.worker}

    def address(self, binding: str) -> str:
        """Where it listens in this binding."""
        return address_of(binding, self.server.line)

    def connect(self, binding: str, **options: Any) -> Session:
        """A session over this binding."""
        return self.open(binding, **options)[0]

    def open(self, binding: str, **options: Any) -> tuple[Session, int]:
        """A session over this binding, and the process that is its worker."""
        worker = self.waiting_worker()
        session = connect(self.address(binding), timeout=PATIENCE_SECONDS, **options)
        return session, worker

    def peer(self, binding: str) -> tuple[Peer, int]:
        """A session over this binding that is spoken by hand, and its worker."""
        worker = self.waiting_worker()
        return make_peer(binding, self.address(binding)), worker

    def waiting_worker(self) -> int:
        """The worker that the next session gets."""
        found: set[int] = set()

        def there_is_one() -> bool:
            nonlocal found
            found = set(workers(self.pid)) - self._in_use
            return len(found) == 1 and self.books.rests()

        wait_for(there_is_one)
        self._in_use |= found
        return found.pop()


class ClientProcess:
    """A client of its own, which may come to harm. It runs `script` and says lines.

    Parameters
    ----------
    script
        Finds `address` and `hang`, as here; the arguments are in ``sys.argv`` from 2 on.
    """

    def __init__(self, address: str, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT + textwrap.dedent(script), address, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


_CLIENT = """
import signal, sys, threading
from tapml_rpc.client import connect
from tests.rpc.faults.ground import hang, operator_test
address = sys.argv[1]
"""


@contextmanager
def nothing_left(books: Bookkeeper) -> Iterator[None]:
    """What there is after the block is what there was before it."""
    # What an earlier test left to be reaped is none of this one's.
    wait_for(books.rests)
    before = books.account()
    yield
    books.settle(before)


def make_peer(binding: str, address: str) -> Peer:
    """A session that is spoken by hand."""
    kind: type[Peer] = RawPeer if binding == "zmq" else WebSocketPeer
    return kind(address, download_window=2 << 20)


def state_of(pid: int) -> str:
    """A process's state as the system shows it: ``T`` for stopped, ``Z`` for not reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def exists(pid: int) -> bool:
    """Whether there is a process, one that waits to be reaped left out."""
    return state_of(pid) not in ("Z", "X")


def open_descriptors() -> int:
    """How many this process has, without those that wait for the garbage collector."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it has not come to hold in time"
        time.sleep(0.01)


def call(session: Session, given: Any, source: bytes = ADD_ONE) -> RemoteTensor:
    """Send the operator `source` on `given`; where its result will be."""
    library = session.upload(add_one_library(source))
    data = np.broadcast_to(np.asarray(given, np.float32), (ELEMENTS,))
    x, y = (RemoteTensor(session.allocate(data.nbytes), 0, data.shape, "float32") for _ in "xy")
    session.write(x.buffer, np.ascontiguousarray(data))
    session.call(library, "add_one", [x, y])
    return y


def operator_test(session: Session, given: float = 1.0) -> None:
    """Run a sound operator and check every element of what it makes."""
    result = np.frombuffer(session.read(call(session, given).buffer), np.float32)
    assert np.array_equal(result, np.full(ELEMENTS, given + 1, np.float32))


def hang(session: Session) -> None:
    """Have the device run what never ends."""
    call(session, 1, NEVER_ENDS)


def assert_tells_all(error: RemoteError, *words: str) -> None:
    """A loss comes with what ran, what had begun before it, where it was, and what was printed."""
    message = str(error)
    assert all(word in message for word in words), message
    begun = re.search(r"last commands (begun|received):\n(.*?)(\nlast|$)", message, re.DOTALL)
    assert begun and "'add_one'" in begun.group(2), message
    assert "last commands sent:" in message
    assert f" in {error.command}" in message or not error.command
    assert "worker.py" in error.remote_traceback
    assert error.remote_traceback[:60] in error.driver_log
