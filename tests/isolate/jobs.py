"""Jobs that end in every way a job can end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tapml_targets.errors import LimitExceededError

LOCATIONS: Final = {
    name: f"tests.isolate.jobs:{name}"
    for name in (
        "echo",
        "crash",
        "leave",
        "hang",
        "refuse",
        "fail",
        "meet",
        "loaded",
        "load",
        "announce",
    )
}


def echo(payload: Any) -> Any:
    return payload


def crash(_: Any) -> None:
    print("about to read address zero", file=sys.stderr, flush=True)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def leave(code: int) -> None:
    print("leaving", flush=True)
    os._exit(code)


def hang(_: Any) -> None:
    while True:
        time.sleep(60)


def refuse(message: str) -> None:
    raise LimitExceededError(message)


def fail(message: str) -> None:
    raise KeyError(message)


def meet(names: list[str]) -> bool:
    """Leave a mark and wait for the other's: two of these end only if they run side by side."""
    mine, other = (Path(name) for name in names)
    mine.touch()
    while not other.exists():
        time.sleep(0.01)
    return True


def loaded(module: str) -> bool:
    return module in sys.modules


def load(module: str) -> None:
    import_module(module)


def announce(path: str) -> None:
    """Write the process numbers of this job and of a process it started, then hang."""
    inner = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(f"{os.getpid()} {inner.pid}")
    hang(None)
