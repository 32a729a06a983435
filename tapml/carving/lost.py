"""Why no test gave a verdict, in words, and a lost device's: what was tried, how to go on."""

from __future__ import annotations

import re
from typing import Final

from tapml_targets.errors import DeviceLostError

LOST: Final = "the device was lost: "
"""What the reason of a verdict begins with where a kernel took its device down."""

UNBUILT: Final = "the device does not build its kernels: "
"""What it begins with where the device's compiler refused the kernels."""

NO_TEST: Final = "the suite has no test of it"
"""The reason of a verdict where nothing was carved: a byte budget leaves operators out."""


# Where what the driver printed ends: Python's own words on a crash, and tapml's on what was sent.
_NOT_THE_DRIVER: Final = re.compile(
    r"^(Fatal Python error|Current thread|Thread 0x|last commands (sent|begun):).*", re.M | re.S
)


def headline(error: DeviceLostError) -> str:
    """The error's first line, which announces nothing that stands below it."""
    first = str(error).partition("\n")[0]
    if not first.endswith(":"):
        return first
    return first.rpartition("; ")[0] or first.removesuffix(":")


def printed_last(error: DeviceLostError) -> str:
    """The last line that the driver or its compiler printed; empty where there is none.

    A compiler that gives up says why in it, before it ends the process.
    """
    below = str(error).partition("\n")[2]
    for text in (below, error.driver_log):
        printed = _NOT_THE_DRIVER.sub("", text).split("\n")
        said = [line.strip() for line in printed if line.strip()]
        if said:
            return said[-1]
    return ""


def rephrased(error: DeviceLostError, *, before: str = "", after: str = "") -> DeviceLostError:
    """The same error with text before and after its first line; the lines below it stay."""
    rest = str(error).partition("\n")[2]
    return type(error)(
        f"{before}{headline(error)}{after}" + (f"\n{rest}" if rest else ""),
        remote_traceback=error.remote_traceback,
        command=error.command,
        driver_log=error.driver_log,
    )
