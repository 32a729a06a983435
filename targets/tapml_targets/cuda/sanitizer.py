"""NVIDIA's compute-sanitizer as a checker, on a GPU: it starts the process that it watches.

One process has one of its tools: ``memcheck`` (accesses out of bounds and misaligned ones), or the
one that ``TAPML_SANITIZER_TOOL`` names, ``racecheck`` (races in shared memory), ``initcheck``
(memory that was never written) or ``synccheck`` (divergent barriers).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tapml_targets.check_messages import Access, Kind, Message, Place
from tapml_targets.errors import InputError, SetupError

__all__ = [
    "MAX_MESSAGES",
    "NAME",
    "ON_DEVICES",
    "UNOPTIMISED",
    "environment",
    "find_checker",
    "is_silenced",
    "prefix",
    "read_messages",
]

NAME: Final = "compute-sanitizer"
MAX_MESSAGES: Final = 4000
UNOPTIMISED: Final = ""
ON_DEVICES: Final = True
LOG_VARIABLE: Final = "TAPML_SANITIZER_LOG"
"""Set in a process that is watched: its GPUs are checkers, and its kernels know their lines."""
TOOL_VARIABLE: Final = "TAPML_SANITIZER_TOOL"
TOOLS: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
_PLACES: Final = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_MARK: Final = "========= "
_ACCESS: Final = re.compile(
    r"(?P<fault>Invalid|Uninitialized) __(?P<space>\w+)__ (?:memory )?(?P<access>read|write|atomic)"
    r" of size (?P<size>\d+)"
)
# "at f(int *)+0x70 in kernels.cu:34", and as older versions have it, "at 0x70 in kernels.cu:34:f".
_AT: Final = re.compile(
    r"at (?:(?P<named>\w+)(?:\([^)]*\))?\+)?0x[0-9a-f]+(?: in (?P<file>[^\s:]*):(?P<line>\d+)"
    r"(?::(?P<behind>\w+))?)?"
)
_BY: Final = re.compile(r"by thread (\(\d+,\d+,\d+\)) in block (\(\d+,\d+,\d+\))")
_ADDRESS: Final = re.compile(r"Address 0x(?P<address>[0-9a-f]+) is (?P<how>.*)")
_RACE: Final = re.compile(r"Race reported between (\w+) access")
_OTHER_SIDE: Final = re.compile(r"and (\w+) access")
_SPACES: Final = {"global": "global", "shared": "local", "local": "private"}


def missing() -> str:
    """What is missing here, with the remedy; empty if nothing is."""
    if not _gpus():
        return (
            "compute-sanitizer checks kernels on an NVIDIA GPU, and this machine has none with a "
            "driver; without TAPML_CUDA_CHECKER the kernels are checked on tapml's simulator"
        )
    if _program() is None:
        return (
            "compute-sanitizer is not installed: install the package cuda-sanitizer of NVIDIA's "
            "CUDA toolkit, or put its folder on PATH"
        )
    return ""


def _gpus() -> int:
    """Number of NVIDIA GPUs that the driver lists."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _program() -> Path | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    found = shutil.which("compute-sanitizer", path=path)
    return None if found is None else Path(found)


def find_checker() -> Path:
    """The program; raises SetupError, with the remedy, if it or a GPU is missing."""
    if problem := missing():
        raise SetupError(problem)
    program = _program()
    assert program is not None  # noqa: S101 - nothing is missing
    return program


def environment(library: Path, log: Path) -> dict[str, str]:
    """Variables of a process that is watched."""
    del library
    return {LOG_VARIABLE: str(log)}


def prefix(library: Path, log: Path) -> tuple[str, ...]:
    """What stands before the command of the process that is watched.

    Raises
    ------
    InputError
        If ``TAPML_SANITIZER_TOOL`` names no tool.
    """
    tool = os.environ.get(TOOL_VARIABLE, TOOLS[0])
    if tool not in TOOLS:
        raise InputError(f"{TOOL_VARIABLE} is one of {', '.join(TOOLS)}, not {tool!r}")
    return (
        str(library), "--tool", tool, "--target-processes", "all", "--print-limit",
        str(MAX_MESSAGES), "--show-backtrace", "no", "--log-file", str(log),
    )  # fmt: skip


def is_watched() -> bool:
    """Whether this process is watched."""
    return bool(os.environ.get(LOG_VARIABLE))


def read_messages(text: str) -> Iterator[Message]:
    """The messages in a part of a log."""
    report: list[str] = []
    for line in (*text.splitlines(), _MARK):
        # A fault's first line has one blank behind the mark, its further lines several.
        if line.startswith(_MARK) and not line.removeprefix(_MARK).startswith(" "):
            if (message := _message(report)) is not None:
                yield message
            report = [line.removeprefix(_MARK)]
        elif line.startswith(_MARK):
            report.append(line.removeprefix(_MARK).strip())


def is_silenced(text: str) -> bool:
    """Whether it stopped logging there."""
    return "were not printed. Use --print-limit" in text


def _message(report: list[str]) -> Message | None:
    headline = report[0] if report else ""
    whole = "\n".join(report)
    kernel, lines = _located(whole)
    by = _BY.search(whole)
    item, group = by.groups() if by else ("", "")
    address = _ADDRESS.search(whole)
    number = int(address["address"], 16) if address else None
    if access := _ACCESS.search(headline):
        named: Access = "write" if access["access"] in ("write", "atomic") else "read"
        place = Place(lines[0] if lines else 0, 0, named, item, group)
        space = _SPACES.get(access["space"], "")
        kind: Kind = "out-of-bounds write" if named == "write" else "out-of-bounds read"
        if access["fault"] == "Uninitialized":
            kind = "uninitialised value"
        elif address and "misaligned" in address["how"]:
            kind = "unaligned access"
        return Message(kind, headline, kernel, (place,), space, number, int(access["size"]))
    if race := _RACE.search(headline):
        other = _OTHER_SIDE.search(whole)
        sides = [race[1], other[1] if other else ""]
        places = tuple(
            Place(line, 0, "write" if side == "Write" else "read")
            for side, line in zip(sides, lines, strict=False)
        )
        return Message("data race", headline, kernel, places, "local")
    if headline.startswith("Barrier error"):
        place = Place(lines[0] if lines else 0, 0, "barrier", item, group)
        return Message("barrier divergence", headline, kernel, (place,))
    return None


def _located(report: str) -> tuple[str, list[int]]:
    """The kernel, and the lines that a report names, in order."""
    kernel, lines = "", []
    for match in _AT.finditer(report):
        kernel = kernel or match["named"] or match["behind"] or ""
        if match["line"]:
            lines.append(int(match["line"]))
    return kernel, lines
