"""Output of a process that a test decides."""

from __future__ import annotations

from pathlib import Path


def print_in(pid: int, data: bytes, descriptor: int = 1) -> None:
    """Write to a process's standard output, or to another descriptor of it, as if it had."""
    with Path(f"/proc/{pid}/fd/{descriptor}").open("wb") as output:
        output.write(data)
