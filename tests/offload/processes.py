"""Finds what a command left behind: processes that carry a mark in their environment."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MARK: Final = "TAPML_TEST_MARK"


def new_mark() -> str:
    """A value for the environment variable `MARK` that no other process has."""
    return uuid.uuid4().hex


def marked(mark: str, words: str = "") -> dict[int, str]:
    """Command lines, by process number, of running processes with this mark."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        # A process that has ended and was not waited for has neither.
        if f"{MARK}={mark}".encode() in environment and command and words in command:
            found[int(folder.name)] = command
    return found


def left_after(mark: str, seconds: float = 60.0) -> dict[int, str]:
    """What is still running with this mark after so long at most."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def half_written(folder: Path) -> list[str]:
    """Files below `folder` that a writer uses before it is done."""
    names: Iterable[Path] = folder.rglob("*")
    return sorted(
        str(path.relative_to(folder))
        for path in names
        if path.name.startswith(".") or path.suffix in {".partial", ".tmp"}
    )
