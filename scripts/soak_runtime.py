"""Runs many operator tests against ``tapml rpc serve`` and checks for leaks.

    python3 scripts/soak_runtime.py --tests 10000          over both bindings, 10,000 each

An operator test is like a replay of a carved test: allocate, write, call, read, free, in one batch;
every tenth makes its call a program and runs that. Sessions, device bytes, processes, shared
memory, file descriptors and threads, of the server and of this client, are counted before and
after. The exit code is 1 if any count grew.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import zmq

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.processes import family, memory, processor_ticks, workers
from scripts.wire_fuzz.bindings import SERVE_OPTIONS, address_of
from scripts.wire_fuzz.kernel import operator_test, packed_library
from scripts.wire_fuzz.server import ServerUnderTest
from tapml_rpc import wire
from tapml_rpc.client import Session, connect

_BINDINGS: Final = ("zmq", "websocket")
_PATIENCE_SECONDS: Final = 60.0
_PING_SECONDS: Final = 0.5
_POLL_MILLISECONDS: Final = 100
_RECORD_EVERY: Final = 10
_WARM_UP: Final = 200
_BLOB: Final = "/memfd:tapml-blob"
_OURS: Final = ("/memfd:tapml",)


@dataclass(frozen=True)
class Account:
    """Resource counts, which must return to their values after a fault.

    Attributes
    ----------
    sessions, device_bytes
        As the server reports, without the bookkeeper.
    processes
        The server and all that descend from it.
    shared_memories
        Pieces of shared memory that these processes hold.
    descriptors, threads
        Of the server's own process, without blobs kept by hash.
    own_descriptors, own_threads
        Of this process; the threads that watch sessions.
    """

    sessions: int
    device_bytes: int
    processes: int
    shared_memories: int
    descriptors: int
    threads: int
    own_descriptors: int
    own_threads: int

    def is_within(self, before: Account) -> bool:
        """Whether no count grew, and the spare worker is there."""
        now, was = asdict(self), asdict(before)
        return self.processes == before.processes and all(now[each] <= was[each] for each in was)


class Bookkeeper:
    """Holds a session with a server to query its resources.

    Parameters
    ----------
    address
        The server's ``tcp://`` address.
    pid
        Its process.

    Attributes
    ----------
    worker
        The worker process of this session.
    data_port
        Where the server takes ZeroMQ's payloads.
    """

    def __init__(self, address: str, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._control = self._context.socket(zmq.DEALER)
        self._control.connect(address)
        (self.worker,) = workers(pid)
        hello = {"type": "hello", "versions": [wire.VERSION], "download_window": 0}
        welcome = self._ask(hello, "welcome")
        self.data_port = int(welcome["data_address"].rpartition(":")[2])
        self._ping = {"type": "ping", "sequence": 1, "session": welcome["session"]}
        self._thread = threading.Thread(target=self._stay, daemon=True)
        self._thread.start()

    def __enter__(self) -> Bookkeeper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def pong(self) -> dict[str, Any]:
        """The server's current answer to a ping."""
        with self._lock:
            return self._ask(self._ping, "pong")

    def rests(self) -> bool:
        """Whether each session has a worker and one more waits, and all others have ended.

        A worker that is ready shares one memory with the supervisor. One that was just forked holds
        all of them, then no memory; the supervisor drops that of a worker before it ends.
        """
        left, waiting = _shared_memories(self._pid, _OURS), workers(self._pid)
        for worker in waiting:
            held = _shared_memories(worker, _OURS)
            if not held or not held <= left:
                return False
            left -= held
        sessions: int = self.pong()["sessions"]
        return len(waiting) == sessions + 1

    def account(self) -> Account:
        """The current counts."""
        pong = self.pong()
        members = family(self._pid)
        kept = _blobs(self._pid)
        return Account(
            sessions=pong["sessions"] - 1,
            device_bytes=pong["device_bytes"],
            processes=len(members),
            shared_memories=len(set().union(*map(_shared_memories, members))),
            descriptors=_entries(f"/proc/{self._pid}/fd") - kept,
            threads=_entries(f"/proc/{self._pid}/task"),
            own_descriptors=_entries("/proc/self/fd"),
            own_threads=sum(each.name.startswith("tapml") for each in threading.enumerate()),
        )

    def settle(self, before: Account) -> None:
        """Wait until no count exceeds `before` and the number of processes is equal.

        Counts may be lower: a thread that was reaping an earlier session's worker may have ended.

        Raises
        ------
        AssertionError
            On timeout, naming the differences.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (now := self.account()).is_within(before):
            if time.monotonic() > deadline:
                was, found = asdict(before), asdict(now)
                changed = {k: f"{was[k]} -> {found[k]}" for k in was if was[k] != found[k]}
                raise AssertionError(f"not as it was before: {changed}")
            time.sleep(0.02)

    def _stay(self) -> None:
        with suppress(AssertionError):
            while not self._stop.wait(_PING_SECONDS):
                self.pong()

    def _ask(self, header: dict[str, Any], kind: str) -> dict[str, Any]:
        self._control.send(wire.pack(header))
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and not self._stop.is_set():
            if self._control.poll(_POLL_MILLISECONDS):
                answer = wire.unpack(self._control.recv())
                if answer["type"] == kind:
                    return answer
        raise AssertionError(f"the server has sent no {kind} for {_PATIENCE_SECONDS:g} s")


def run_operator_tests(session: Session, count: int) -> None:
    """Run `count` operator tests in a session."""
    library = session.upload(packed_library())
    for index in range(count):
        operator_test(session, library, index % 97, record=not index % _RECORD_EVERY)
    session.fence()


def private_bytes(pid: int) -> int:
    """Memory of a process that it shares with no other."""
    return sum(size for kind, size in memory(pid).items() if kind.startswith("Private_"))


@contextmanager
def served(
    device: str, *arguments: str, prefix: Sequence[str] = ()
) -> Iterator[tuple[ServerUnderTest, Bookkeeper]]:
    """``tapml rpc serve`` over both bindings, warm, and its bookkeeper.

    Parameters
    ----------
    prefix
        Before the server's command: what runs it somewhere else.
    """
    options = (*SERVE_OPTIONS["websocket"], *arguments)
    with (
        ServerUnderTest(device, *options, prefix=prefix) as server,
        Bookkeeper(server.line["address"], server.process.pid) as books,
    ):
        # Exclude one-time resources: with the first large payload pyzmq starts its collector, on
        # either side.
        with connect(server.line["address"], timeout=_PATIENCE_SECONDS) as session:
            buffer = session.allocate(4 << 20)
            session.write(buffer, bytes(4 << 20))
            session.read(buffer)
        # The server has heard that this session is closed.
        while books.account().sessions:
            time.sleep(0.02)
        wait_for_spare(books)
        yield server, books


def wait_for_spare(books: Bookkeeper) -> None:
    """Wait until every session has a worker, and one more waits."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not books.rests():
        if time.monotonic() > deadline:
            raise AssertionError(f"the server does not come to rest: {books.account()}")
        time.sleep(0.02)


def main() -> int:
    """Return 1 if something leaked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", type=int, default=10_000, metavar="N")
    parser.add_argument("--device", default="opencl")
    options = parser.parse_args()
    failed = 0
    with served(options.device) as (server, books):
        for binding in _BINDINGS:
            wait_for_spare(books)
            before = books.account()
            with connect(address_of(binding, server.line)) as session:
                run_operator_tests(session, _WARM_UP)
                wait_for_spare(books)
                members = family(server.process.pid)
                began = {pid: private_bytes(pid) for pid in (os.getpid(), *members)}
                held = books.account()
                started = time.perf_counter()
                run_operator_tests(session, options.tests)
                seconds = time.perf_counter() - started
                worker = max(workers(server.process.pid), key=processor_ticks)
                watched = {"client": os.getpid(), "server": members[0], "worker": worker}
                drift = {
                    name: (private_bytes(pid) - began[pid]) / 1024 for name, pid in watched.items()
                }
                during = _compare(books, held, "with the session open")
            failed += during + _compare(books, before, "after its end")
            shown = ", ".join(f"{name} {kib:+.0f} KiB" for name, kib in drift.items())
            each = 1e6 * seconds / options.tests
            print(f"{binding}: {options.tests} operator tests, {each:.0f} us each; {shown}")
        print(f"at the end: {books.account()}")
    return int(failed > 0)


def _compare(books: Bookkeeper, before: Account, when: str) -> int:
    try:
        books.settle(before)
    except AssertionError as error:
        print(f"{when}: {error}", file=sys.stderr)
        return 1
    return 0


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _blobs(pid: int) -> int:
    """Number of a process's descriptors of blobs kept by hash."""
    links = _links(pid)
    return sum(link.startswith(_BLOB) for link in links)


def _shared_memories(
    pid: int,
    names: tuple[str, ...] = (*_OURS, "/dev/shm/"),  # noqa: S108
) -> set[str]:
    """Shared memory that a process has mapped, by inode: ours and the drivers'."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        # It has just ended.
        return set()
    named = (line.split(maxsplit=5) for line in lines if _BLOB not in line)
    return {fields[4] for fields in named if len(fields) == 6 and fields[5].startswith(names)}


def _links(pid: int) -> list[str]:
    """Targets of a process's descriptors."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # One may be closed meanwhile.
        with suppress(OSError):
            found.append(str(descriptor.readlink()))
    return found


if __name__ == "__main__":
    sys.exit(main())
