"""``live.json``: where a running session stands, for whoever looks at its folder meanwhile.

Written anew at most four times a second by a thread of its own, so that a slow disk holds nobody
up. It is worth nothing once the run is over: it is not synced to the disk and is no boundary at
which a session can be harmed, and a disk that refuses it ends no run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tapml.offload.events import Event, Watcher
from tapml.offload.lock import LOCK, is_held
from tapml.offload.run_state import RunState

LIVE: Final = "live.json"
FORMAT: Final = "tapml-live/1"
REPORT: Final = "report.json"
INTERVAL_SECONDS: Final = 0.25
_MAX_BYTES: Final = 64 << 20


class LiveState:
    """A watcher that keeps ``live.json`` up to date and passes every event on.

    A context manager: at its end, however it comes, the file says that nothing runs any more.

    Parameters
    ----------
    folder
        The session's.
    watcher
        Who else wants the events.
    """

    def __init__(self, folder: Path, watcher: Watcher) -> None:
        self._folder = folder
        self._watcher = watcher
        self._state = RunState()
        self._version = 0
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="live-state", daemon=True)

    def __enter__(self) -> Self:
        self._write(running=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._changed.set()
        self._thread.join()
        self._write(running=False)

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        with self._lock:
            self._state.apply(event)
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
            data = _data(self._state, running)
        data |= {"version": self._version, "report_version": report_version(self._folder)}
        partial = self._folder / f".{LIVE}.partial"
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(data, allow_nan=False), encoding="utf-8")
            partial.replace(self._folder / LIVE)


class LiveReader:
    """Reads what a session says about itself while another process runs it.

    Parameters
    ----------
    folder
        The session's; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dead: object = None

    def read(self) -> dict[str, Any]:
        """The content of ``live.json``.

        ``running`` is true only while a process holds the session: what a killed one left says no
        more than how far it came, and ``cut_off`` is true then. ``report_version`` is that of the
        report as it is now. Where there is no such file, or none that can be read, nothing runs as
        far as one can tell.
        """
        path = self._folder / LIVE
        data: dict[str, Any] = {}
        seen: object = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = path.stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if found.st_size <= _MAX_BYTES:
                read = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
                data = read if isinstance(read, dict) and read.get("format") == FORMAT else {}
        data = _nothing() | data
        said = data["running"] is not False
        # The lock of a session that was found dead is left alone until its file changes.
        if data["running"] is not False and seen != self._dead:
            data["running"] = is_held(self._folder / LOCK)
            self._dead = None if data["running"] else seen
        else:
            data["running"] = False
        data["cut_off"] = said and not data["running"]
        data["report_version"] = report_version(self._folder)
        return data


def report_version(folder: Path) -> int:
    """Another number for every report that is written; 0 where there is none.

    Microseconds since the epoch: JavaScript holds them exactly.
    """
    try:
        return (folder / REPORT).stat().st_mtime_ns // 1000
    except OSError:
        return 0


def _data(state: RunState, running: bool) -> dict[str, Any]:
    left = state.seconds_left
    return {
        "format": FORMAT,
        "running": running,
        "phase": state.phase,
        "detail": state.step or state.detail,
        "done": state.done,
        "total": state.total,
        "seconds_left": None if left is None or not math.isfinite(left) else round(left, 1),
        "device": state.device,
        "current": state.current,
        "model_runs": {"done": state.model_runs, "promised": state.promised},
        "verdicts": {
            "standing": state.standing,
            "again": state.again,
            "fresh": state.fresh,
            "why": dict(state.reasons),
        },
        "operators": {
            name: {"state": line.state, "worst_ratio": line.worst_ratio, "reason": line.reason}
            for name, line in state.operators.items()
        },
        "process": os.getpid(),
    }


def _nothing() -> dict[str, Any]:
    return _data(RunState(), running=False) | {"version": 0, "report_version": 0, "process": 0}


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
