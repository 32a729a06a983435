"""The run's side of the storing process: starts it, sends it runs, keeps it for the next carve."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.carving import storing_process
from tapml.carving.shared_memory import DONE, FAILED, PROGRESS_WORDS, STORED, SharedBlocks
from tapml.carving.storing_process import frame, receive_frame
from tapml.execute.arrays import Bytes
from tapml.execute.memory import HostMemory
from tapml_targets.errors import SetupError

# A session carves once; tests and measurements carve again immediately and reuse the process.
IDLE_SECONDS: Final = 10.0
_spare: list[tuple[StoringProcess, float]] = []
_lock = threading.Lock()


@contextmanager
def open_storing() -> Iterator[StoringProcess]:
    """A storing process for one carve, reused if one is idle."""
    with _lock:
        process = _spare.pop()[0] if _spare else None
    if process is not None and not process.alive:
        process.close()
        process = None
    process = process or StoringProcess()
    try:
        yield process
    except BaseException:
        process.close()
        raise
    with _lock:
        _spare.append((process, time.monotonic()))
    timer = threading.Timer(IDLE_SECONDS, _close_spares, (IDLE_SECONDS,))
    timer.daemon = True
    timer.start()


def _close_spares(idle_seconds: float) -> None:
    """Close processes that were idle for at least this time."""
    latest = time.monotonic() - idle_seconds
    with _lock:
        idle = [process for process, since in _spare if since <= latest]
        _spare[:] = [(process, since) for process, since in _spare if since > latest]
    for process in idle:
        process.close()


atexit.register(_close_spares, 0.0)


class StoringProcess:
    """A child process, and the memory shared with it.

    Attributes
    ----------
    blocks
        The shared memory.
    memory
        Host memory of runs, from these blocks.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    storing_process.__name__,
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is handled by the run's process, which then closes the socket.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._posted: list[bytes] = []
        self._forgotten: deque[int] = deque()
        self.blocks = SharedBlocks(self._send_block, self._forgotten.append)
        self.memory = HostMemory(self.blocks.allocate)
        progress = self.blocks.allocate(8 * PROGRESS_WORDS)
        self._progress = progress.view(np.int64)
        self.send("progress", self._place(progress[:])[0])

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def done(self) -> int:
        """Batches and weights stored since the carve was opened."""
        return int(self._progress[DONE])

    @property
    def stored_bytes(self) -> int:
        """Bytes of stored tensors, excluding weights."""
        return int(self._progress[STORED])

    @property
    def failed(self) -> bool:
        """Whether storing failed; :meth:`finish` raises the reason."""
        return bool(self._progress[FAILED])

    def open(self, folder: Path, packs: str) -> None:
        """Start a carve."""
        self._progress[:] = 0
        self.send("open", str(folder.absolute()), packs)

    def post(self, kind: str, *content: Any) -> None:
        """Queue a message to be sent with the next one."""
        self._posted.append(frame((kind, *content)))

    def send(self, kind: str, *content: Any) -> None:
        """Send a message and the queued ones; there is no reply."""
        while self._forgotten:
            self.post("forget", self._forgotten.popleft())
        self.post(kind, *content)
        data = b"".join(self._posted)
        self._posted.clear()
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._death(error) from error

    def window(self, memory: Bytes) -> tuple[int, int, int]:
        """(block, offset, bytes) of shared memory."""
        block, offset = self._place(memory)
        return block, offset, len(memory)

    def share(self, memory: Bytes) -> Bytes:
        """Copy private memory to shared memory."""
        copy = self.blocks.allocate(len(memory))[: len(memory)]
        np.copyto(copy, memory)
        return copy

    def finish(self) -> dict[str, list[bytes]]:
        """Wait until everything is stored; return digests of the weights' chunks.

        Raises
        ------
        SetupError
            If storing failed.
        """
        error, digests = self._ask("finish")
        if error is not None:
            raise SetupError(
                f"the suite cannot be written ({error}): "
                "free some space, carve to another disk, or set a smaller --budget"
            )
        return {name: list(found) for name, found in digests.items()}

    def close(self) -> None:
        """Stop the process. Closing twice has no effect."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, kind: str) -> Any:
        self.send(kind)
        try:
            reply = receive_frame(self._socket)
        except OSError as error:
            raise self._death(error) from error
        if reply is None:
            raise self._death(None)
        return reply

    def _death(self, error: OSError | None) -> SetupError:
        self._process.kill()
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return SetupError(f"the process that stores the suite ended ({how}; {error}): carve again")

    def _place(self, memory: Bytes) -> tuple[int, int]:
        place = self.blocks.place(memory)
        if place is None:
            raise ValueError("this memory is not shared")
        return place.block, place.offset

    def _send_block(self, identifier: int, nbytes: int, descriptor: int) -> None:
        self.send("block", identifier, nbytes)
        socket.send_fds(self._socket, [b"\0"], [descriptor])
