"""Runs many operator tests against ``tapml rpc serve`` and counts what is left behind.

    python3 scripts/soak_runtime.py --tests 10000          over both bindings, 10,000 each

An operator test is what carving replays: allocate, write, call, read, free, in one batch; every
tenth records its call and runs that. Before and after, the account is taken: sessions, device
bytes, processes, shared memory, file descriptors and threads, of the server and of this client.
Exit code 1 where one of them is not what it was.
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

import numpy as np
import zmq

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.wire_fuzz.bindings import BINDINGS, SERVE_OPTIONS, address_of  # noqa: E402
from scripts.wire_fuzz.kernel import packed_library  # noqa: E402
from scripts.wire_fuzz.server import ServerUnderTest  # noqa: E402
from tapml_rpc import wire  # noqa: E402
from tapml_rpc.client import RemoteLibrary, RemoteTensor, Session, connect  # noqa: E402

_PATIENCE_SECONDS: Final = 60.0
_PING_SECONDS: Final = 0.5
_POLL_MILLISECONDS: Final = 100
_ELEMENTS: Final = 1024
_RECORD_EVERY: Final = 10
_WARM_UP: Final = 200
_BLOB: Final = "/memfd:tapml-blob"


@dataclass(frozen=True)
class Account:
    """What there is, of which a fault and its session must leave nothing.

    Attributes
    ----------
    sessions, device_bytes
        As the server says, whoever asks left out.
    processes
        The server and all that descend from it.
    shared_memories
        Pieces of shared memory that these processes hold.
    descriptors, threads
        Of the server's own process; what it keeps by hash, for sessions to come, left out.
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
        """Whether nothing is more than it was, and the worker that waits is there."""
        now, was = asdict(self), asdict(before)
        return self.processes == before.processes and all(now[each] <= was[each] for each in was)


class Bookkeeper:
    """Holds one session with a server for as long as it is looked at, and asks it how it is.

    Parameters
    ----------
    address
        The server's ``tcp://`` address.
    pid
        Its process.

    Attributes
    ----------
    worker
        The process that this session has to itself.
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
        (self.worker,) = family_of(pid) - {pid}
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
        """What the server says of itself now."""
        with self._lock:
            return self._ask(self._ping, "pong")

    def account(self) -> Account:
        """What there is now."""
        pong = self.pong()
        family = family_of(self._pid)
        kept = _blobs(self._pid)
        return Account(
            sessions=pong["sessions"] - 1,
            device_bytes=pong["device_bytes"],
            processes=len(family),
            shared_memories=len(set().union(*map(_shared_memories, family))),
            descriptors=_entries(f"/proc/{self._pid}/fd") - kept,
            threads=_entries(f"/proc/{self._pid}/task"),
            own_descriptors=_entries("/proc/self/fd"),
            own_threads=sum(each.name.startswith("tapml") for each in threading.enumerate()),
        )

    def settle(self, before: Account) -> None:
        """Wait until there is no more than there was `before`, and as many processes.

        It may be less: a thread that was reaping an earlier session's worker has ended since.

        Raises
        ------
        AssertionError
            If that does not come to be; it says what is more or less.
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


def family_of(pid: int) -> set[int]:
    """A process and all that descend from it, those among them that are being reaped."""
    found, new = {pid}, [pid]
    while new:
        parent = new.pop()
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                born = set(map(int, children.read_text("ascii").split())) - found
            except OSError:
                continue
            found |= born
            new += born
    return found


def operator_test(session: Session, library: RemoteLibrary, first: float, record: bool) -> None:
    """One test as carving replays it, its result checked.

    Raises
    ------
    AssertionError
        If the result is wrong.
    """
    given = np.arange(_ELEMENTS, dtype=np.float32) + np.float32(first)
    with session.batch() as batch:
        tensors = [
            RemoteTensor(batch.allocate(given.nbytes), 0, given.shape, "float32") for _ in "xy"
        ]
        batch.write(tensors[0].buffer, given)
        if record:
            batch.run(batch.record(library, "add_one", tensors))
        else:
            batch.call(library, "add_one", tensors)
        read = batch.read(tensors[1].buffer)
        for tensor in tensors:
            batch.free(tensor.buffer)
    if not np.array_equal(np.frombuffer(read.result(), np.float32), given + 1):
        raise AssertionError("the operator's result is wrong")


def run_operator_tests(session: Session, count: int) -> None:
    """Run `count` operator tests in a session."""
    library = session.upload(packed_library())
    for index in range(count):
        operator_test(session, library, index % 97, not index % _RECORD_EVERY)
    session.fence()


def resident_bytes(pid: int) -> int:
    """Memory of a process, without what it shares with others."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    return 1024 * sum(
        int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")
    )


@contextmanager
def served(
    device: str, *arguments: str, prefix: Sequence[str] = ()
) -> Iterator[tuple[ServerUnderTest, Bookkeeper]]:
    """``tapml rpc serve`` over both bindings, warm, and who looks at it.

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
        # What a process makes once is not what a session leaves: the first large payload has pyzmq
        # start its collector, on either side.
        with connect(server.line["address"], timeout=_PATIENCE_SECONDS) as session:
            buffer = session.allocate(4 << 20)
            session.write(buffer, bytes(4 << 20))
            session.read(buffer)
        wait_for_spare(books)
        yield server, books


def wait_for_spare(books: Bookkeeper) -> None:
    """Wait until there is the server, the bookkeeper's worker, and the one that waits."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (now := books.account()).processes != 3 or now.sessions or now.device_bytes:
        if time.monotonic() > deadline:
            raise AssertionError(f"the server does not come to rest: {now}")
        time.sleep(0.02)


def main() -> int:
    """Return 1 where something was left behind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", type=int, default=10_000, metavar="N")
    parser.add_argument("--device", default="opencl")
    options = parser.parse_args()
    failed = 0
    with served(options.device) as (server, books):
        for binding in BINDINGS:
            before = books.account()
            with connect(address_of(binding, server.line)) as session:
                run_operator_tests(session, _WARM_UP)
                family = sorted(family_of(server.process.pid))
                began = {pid: resident_bytes(pid) for pid in (os.getpid(), *family)}
                held = books.account()
                started = time.perf_counter()
                run_operator_tests(session, options.tests)
                seconds = time.perf_counter() - started
                worker = max(family[1:], key=_processor_ticks)
                watched = {"client": os.getpid(), "server": family[0], "worker": worker}
                drift = {
                    name: (resident_bytes(pid) - began[pid]) / 1024 for name, pid in watched.items()
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


def _processor_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _blobs(pid: int) -> int:
    """How many descriptors of what is kept by hash a process has."""
    links = _links(pid)
    return sum(link.startswith(_BLOB) for link in links)


def _shared_memories(pid: int) -> set[str]:
    """Those that a process has mapped, by inode: of ours, and of drivers."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        # It has just ended.
        return set()
    named = (line.split(maxsplit=5) for line in lines if _BLOB not in line)
    return {
        fields[4]
        for fields in named
        if len(fields) == 6 and fields[5].startswith(("/memfd:tapml", "/dev/shm/"))  # noqa: S108
    }


def _links(pid: int) -> list[str]:
    """What the descriptors of a process are."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # One may be closed while we look.
        with suppress(OSError):
            found.append(str(descriptor.readlink()))
    return found


if __name__ == "__main__":
    sys.exit(main())
