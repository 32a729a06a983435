"""``live.json``: the progress of a run, for other processes that watch its folder.

A separate thread writes it at most four times a second, so that a slow disk does not delay the run.
It is not synced, and errors are ignored, because nobody needs it once the run is over.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

import msgspec

from tapml.durable.files import replace_file
from tapml.runs.events import Event, Watcher
from tapml.runs.lock import LOCK, RunLock
from tapml.runs.progress import LIVE_FORMAT, Live, Progress

LIVE: Final = "live.json"
INTERVAL_SECONDS: Final = 0.25
_MAX_BYTES: Final = 64 << 20


class LiveFile:
    """A watcher that updates ``live.json`` from `progress` and passes every event on.

    A context manager: on exit, it marks the run in the file as not running.
    """

    def __init__(self, folder: Path, progress: Progress, watcher: Watcher) -> None:
        self._folder = folder
        self._watcher = watcher
        self._progress = progress
        self._version = 0
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="live-file", daemon=True)

    def __enter__(self) -> Self:
        self._write(running=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._changed.set()
        self._thread.join()
        self._write(running=False)

    def __call__(self, event: Event) -> None:
        """Apply an event."""
        with self._lock:
            self._progress.apply(event)
        self._changed.set()
        self._watcher(event)

    def _keep(self) -> None:
        while not self._closed.is_set():
            self._changed.wait()
            self._changed.clear()
            if not self._closed.is_set():
                self._write(running=True)
            self._closed.wait(INTERVAL_SECONDS)

    def _write(self, *, running: bool) -> None:
        self._version += 1
        with self._lock:
            live = self._progress.live()
        live.format, live.running, live.process = LIVE_FORMAT, running, os.getpid()
        live.version = self._version
        with (
            contextlib.suppress(OSError),
            replace_file(self._folder / LIVE, durable=False) as partial,
        ):
            partial.write_bytes(msgspec.json.encode(live))


L = TypeVar("L", bound=Live)


class LiveReader(Generic[L]):
    """Reads the progress of a run in another process.

    Parameters
    ----------
    folder
        The run folder; it need not exist yet.
    shape
        The content of the live file of this kind of work.
    """

    def __init__(self, folder: Path, shape: type[L]) -> None:
        self._folder = folder
        self._shape = shape
        self._lock = RunLock(folder / LOCK)
        self._dead: object = None

    def read(self) -> L:
        """The content of ``live.json``; default values if it is missing or cannot be read.

        ``running`` is true only while a process holds the folder. If the process was killed,
        ``cut_off`` is true and the rest is its last progress.
        """
        path = self._folder / LIVE
        live, seen = self._shape(), None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = path.stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if found.st_size <= _MAX_BYTES:
                read = msgspec.json.decode(path.read_bytes(), type=self._shape)
                live = read if read.format == LIVE_FORMAT else live
        claimed = live.running
        # Do not test the lock of a run that was found dead until its file changes.
        live.running = claimed and seen != self._dead and self._lock.is_held
        live.cut_off = claimed and not live.running
        self._dead = seen if live.cut_off else None
        return live
