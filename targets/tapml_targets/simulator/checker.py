"""The checked mode as a platform's checker: its ``checker.py`` takes these names over.

    from tapml_targets.simulator.checker import *

The process in which it runs is told by :data:`LOG_VARIABLE`, and lists the simulated device as one
of the type ``checker``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tapml_targets.check_messages import Message
from tapml_targets.errors import SetupError
from tapml_targets.simulator import toolchain

__all__ = [
    "MAX_MESSAGES",
    "NAME",
    "ON_DEVICES",
    "UNOPTIMISED",
    "environment",
    "find_checker",
    "is_silenced",
    "read_messages",
]

NAME: Final = "tapml's simulator"
UNOPTIMISED: Final = "no-optimiser"
"""Build option for what a checker does not run optimised: it runs everything."""
ON_DEVICES: Final = False
MAX_MESSAGES: Final = 4000
"""Messages per process: a wrong kernel may be wrong in every element."""
LOG_VARIABLE: Final = "TAPML_SIMULATOR_LOG"
"""The file to which a process that checks writes; empty where it only runs kernels."""


def log_of_this_process() -> Path | None:
    """Where this process writes what it finds; None if it does not check."""
    named = os.environ.get(LOG_VARIABLE)
    return Path(named) if named else None


def find_checker() -> Path:
    """The compiler, which is all that checking needs; raises SetupError if it is missing."""
    if problem := toolchain.remedy():
        raise SetupError(f"--check simulates the kernels: {problem}")
    return toolchain.NATIVE / "checked.cpp"


def environment(library: Path, log: Path) -> dict[str, str]:
    """Variables of a process in which simulated devices check, and log to `log`."""
    del library
    return {LOG_VARIABLE: str(log)}


def read_messages(text: str) -> Iterator[Message]:
    """The messages in a part of a log; a line that is no message is left out."""
    for line in text.splitlines():
        try:
            yield msgspec.json.decode(line, type=Message)
        except msgspec.MsgspecError:
            continue


def is_silenced(text: str) -> bool:
    """Whether it stopped logging there."""
    return any(line == json.dumps({"silenced": True}) for line in text.splitlines())
