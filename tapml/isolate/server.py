"""The warm server: imports slow modules once and forks a child for every job.

One thread, so that forking is safe. It ends, and its children with it, when the pool's end of the
socket closes, however the pool's process ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from importlib import import_module
from typing import IO, Any, Final

from tapml.isolate.child import run_child
from tapml.isolate.frame import Decoder, encode

_READ_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 4000
# A child that closed its pipe is about to end; its own exit status is worth this wait.
_EXIT_GRACE_SECONDS: Final = 2.0


@dataclass
class _Child:
    number: int
    pid: int
    pipe: int
    output: IO[bytes]
    end_at: float
    decoder: Decoder = field(default_factory=Decoder)
    outcome: dict[str, Any] | None = None


class _Server:
    def __init__(
        self, pool: socket.socket, decoder: Decoder, jobs: dict[str, str], workers: int
    ) -> None:
        self._pool = pool
        self._jobs = jobs
        self._workers = workers
        self._waiting: deque[dict[str, Any]] = deque()
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(pool, selectors.EVENT_READ)
        self._decoder = decoder

    def run(self, requests: list[dict[str, Any]]) -> None:
        """Serve `requests` and those that follow, until the pool closes its end."""
        self._waiting.extend(requests)
        try:
            self._start_waiting()
            while True:
                for key, _ in self._selector.select(self._patience()):
                    if key.fileobj is self._pool:
                        if not self._read_requests():
                            return
                    else:
                        self._read_child(self._children[key.fd])
                self._end_overdue()
                self._start_waiting()
        finally:
            for child in list(self._children.values()):
                self._kill_process(child)
                self._forget(child)

    def _patience(self) -> float | None:
        if not self._children:
            return None
        return max(0.0, min(c.end_at for c in self._children.values()) - time.monotonic())

    def _read_requests(self) -> bool:
        data = self._pool.recv(_READ_BYTES)
        self._waiting.extend(self._decoder.feed(data))
        return bool(data)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._children) < self._workers:
            self._fork(self._waiting.popleft())

    def _fork(self, request: dict[str, Any]) -> None:
        reading, writing = os.pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the child is reaped)
        pid = os.fork()
        if pid == 0:
            self._pool.close()
            os.close(reading)
            run_child(self._jobs[request["job"]], request["payload"], writing, output.fileno())
        os.close(writing)
        child = _Child(
            number=request["number"],
            pid=pid,
            pipe=reading,
            output=output,
            end_at=time.monotonic() + request["deadline"],
        )
        self._children[reading] = child
        self._selector.register(reading, selectors.EVENT_READ)

    def _read_child(self, child: _Child) -> None:
        data = os.read(child.pipe, _READ_BYTES)
        if not data:
            self._reap(child)
            return
        for outcome in child.decoder.feed(data):
            child.outcome = outcome

    def _reap(self, child: _Child) -> None:
        status = _wait(child.pid, _EXIT_GRACE_SECONDS if child.outcome is None else 0.0)
        if status is None:
            status = self._kill_process(child)
        if child.outcome is not None:
            self._finish(child, child.outcome)
            return
        code = os.waitstatus_to_exitcode(status)
        self._finish(child, {"signal": max(0, -code), "exit_code": max(-1, code)})

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for child in [c for c in self._children.values() if c.end_at <= now]:
            self._kill_process(child)
            self._finish(child, {"deadline": True})

    def _finish(self, child: _Child, answer: dict[str, Any]) -> None:
        tail = _tail(child.output)
        self._forget(child)
        self._pool.sendall(encode({"number": child.number, "stderr_tail": tail, **answer}))

    def _kill_process(self, child: _Child) -> int:
        for ending in (os.killpg, os.kill):
            # The group may not exist yet, or not any more; the child itself always does.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                ending(child.pid, signal.SIGKILL)
        return os.waitpid(child.pid, 0)[1]

    def _forget(self, child: _Child) -> None:
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        child.output.close()
        del self._children[child.pipe]


def _wait(pid: int, patience: float) -> int | None:
    """Exit status of a child that ends within `patience` seconds."""
    end_at = time.monotonic() + patience
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() >= end_at:
            return None
        time.sleep(0.002)


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    return output.read().decode(errors="replace").strip()


def main() -> None:
    """Serve the pool whose socket is the descriptor given as the only argument."""
    pool = socket.socket(fileno=int(sys.argv[1]))
    decoder = Decoder()
    messages: list[Any] = []
    while not messages:
        data = pool.recv(_READ_BYTES)
        if not data:
            return
        messages = decoder.feed(data)
    settings, *requests = messages
    # None in sys.modules makes an import fail as if the module were not installed.
    sys.modules.update(dict.fromkeys(settings["without"]))
    for module in settings["preload"]:
        import_module(module)
    # Objects that exist now are shared with every child as long as nobody touches them.
    gc.freeze()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _Server(pool, decoder, settings["jobs"], settings["workers"]).run(requests)


if __name__ == "__main__":
    main()
