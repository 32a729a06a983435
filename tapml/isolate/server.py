"""The warm server: it imports slow modules once and forks the pool's children.

It has one thread, so that forking is safe. When the pool's end of the socket closes, even because
the pool's process was killed, the server kills its children and exits.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any, Final

from tapml.isolate.child import end_with_parent, run_child
from tapml.isolate.frame import Channel, Received, encode, sealed
from tapml.isolate.member import Member

_TAIL_BYTES: Final = 4000
_MOST_OF_A_FATAL_ERROR: Final = 64 << 10


class _Without:
    """A finder of modules that does not find some.

    They look as if they were not installed. None in ``sys.modules`` would do that to an import, but
    Keras takes a library whose name is there for one that was imported.
    """

    def __init__(self, finder: Any, absent: Collection[str]) -> None:
        self._finder = finder
        self._absent = absent

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the finder finds."""
        if name.partition(".")[0] in self._absent:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


@dataclass
class _Process:
    number: int
    pid: int
    output: IO[bytes]
    folder: str


class _Server:
    def __init__(
        self, socket_of_pool: socket.socket, pool: Channel, jobs: Collection[str], *, scratch: bool
    ) -> None:
        self._socket = socket_of_pool
        self._pool = pool
        self._unsent = bytearray()
        self._jobs = jobs
        self._scratch = scratch
        self._processes: dict[int, _Process] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._ending = False

    def run(self, requests: list[Received]) -> None:
        """Serve `requests` and later ones, until the pool closes its end."""
        self._listen()
        try:
            self._answer({"ready": True})
            self._serve(requests)
            while not self._ending:
                for key, events in self._selector.select():
                    if key.fileobj is self._woken:
                        self._woken.recv(1 << 12)
                        self._reap()
                    elif events & selectors.EVENT_WRITE:
                        self._send()
                    else:
                        self._serve(self._pool.receive(wait=False))
        finally:
            for process in list(self._processes.values()):
                self._kill(process)
                os.waitpid(process.pid, 0)
                self._forget(process)

    def _listen(self) -> None:
        for end in (self._woken, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._end)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._pool, selectors.EVENT_READ)

    def _end(self, *_: object) -> None:
        self._ending = True

    def _serve(self, requests: list[Received]) -> None:
        for request, descriptors in requests:
            if "fork" in request:
                self._fork(request, *descriptors)
            elif request["kill"] in self._processes:
                self._kill(self._processes[request["kill"]])

    def _fork(self, request: dict[str, Any], descriptor: int) -> None:
        member = None if request["member"] is None else Member(**request["member"])
        output = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the child is reaped)
        folder = "" if member is None else member.folder
        if self._scratch and not folder:
            folder = tempfile.mkdtemp(prefix="tapml-process-")
        pid = os.fork()
        if pid == 0:
            if self._scratch:
                os.environ["TMPDIR"] = tempfile.tempdir = folder
            self._selector.close()
            for ours in (self._pool, self._woken, self._waker):
                ours.close()
            channel = Channel(socket.socket(fileno=descriptor))
            run_child(channel, self._jobs, member, output.fileno())
        os.close(descriptor)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # Parent and child both do this: whichever comes first, there is a group to kill.
            os.setpgid(pid, pid)
        process = _Process(request["fork"], pid, output, folder)
        self._processes[process.number] = process
        self._answer({"number": process.number, "pid": pid})

    def _reap(self) -> None:
        for process in list(self._processes.values()):
            found, status = os.waitpid(process.pid, os.WNOHANG)
            if not found:
                continue
            self._kill(process)  # Also ends processes that the child left behind.
            answer = {
                "number": process.number,
                "exit": os.waitstatus_to_exitcode(status),
                "tail": tail(process.output),
            }
            self._forget(process)
            self._answer(answer)

    def _answer(self, message: dict[str, Any]) -> None:
        # Short enough to be inline: its longest part is the tail.
        with sealed(encode(message)) as (data, _):
            self._unsent += data
        self._send()

    def _send(self) -> None:
        """Send without blocking: the pool may be blocked until this server reads."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
                del self._unsent[:sent]
        writing = selectors.EVENT_WRITE if self._unsent else 0
        self._selector.modify(self._pool, selectors.EVENT_READ | writing)

    def _kill(self, process: _Process) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def _forget(self, process: _Process) -> None:
        process.output.close()
        del self._processes[process.number]
        folders = {other.folder for other in self._processes.values()}
        if process.folder and process.folder not in folders:
            shutil.rmtree(process.folder, ignore_errors=True)


def tail(output: IO[bytes]) -> str:
    """The end of a file of captured output; of a fatal error what led to it and its beginning.

    Python then lists all threads and extension modules, which may be longer than the tail.
    """
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MOST_OF_A_FATAL_ERROR))
    text = output.read()
    fatal = text.rfind(b"Fatal Python error")
    first = max(0, len(text) - _TAIL_BYTES)
    if fatal >= 0:
        first = min(first, max(0, fatal - _TAIL_BYTES // 4))
    return text[first : first + _TAIL_BYTES].decode(errors="replace").strip()


def main(descriptor: int) -> None:
    """Serve the pool whose socket is `descriptor`."""
    # Preloading does not read the socket. Until it is over, there are no children to kill first.
    end_with_parent(signal.SIGTERM)
    connection = socket.socket(fileno=descriptor)
    pool = Channel(connection)
    with contextlib.suppress(EOFError, BrokenPipeError):
        requests: list[Received] = []
        while not requests:
            requests = pool.receive(wait=True)
        settings, _ = requests.pop(0)
        absent = frozenset(settings["without"])
        sys.meta_path[:] = [_Without(each, absent) for each in sys.meta_path]
        # Imports leave little garbage, and the collector would walk over all modules many times.
        gc.disable()
        for module in settings["preload"]:
            import_module(module)
        # Keep the collector from writing to objects, so that children share their pages.
        gc.freeze()
        gc.enable()
        _Server(connection, pool, frozenset(settings["jobs"]), scratch=settings["scratch"]).run(
            requests
        )
