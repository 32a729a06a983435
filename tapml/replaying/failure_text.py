"""Reasons of verdicts without a test result, and text about lost devices."""

from __future__ import annotations

import copy
import re
from typing import Final, TypeVar

from tapml_targets.errors import DeviceLostError, ReferenceLostError

Lost = TypeVar("Lost", DeviceLostError, ReferenceLostError)

LOST: Final = "the device was lost: "
"""Prefix of a verdict's reason if a kernel crashed its device."""

UNBUILT: Final = "the device does not build its kernels: "
"""Prefix of the reason if the device's compiler rejected the kernels."""

NO_TEST: Final = "the suite has no test of it"
"""The reason if nothing was carved: a byte budget may leave operators out."""


# End of the driver's output: Python's text on a crash, and tapml's about sent commands.
_NOT_THE_DRIVER: Final = re.compile(
    r"^(Fatal Python error|Current thread|Thread 0x|last commands (sent|begun|received):).*",
    re.M | re.S,
)


def headline(error: DeviceLostError | ReferenceLostError) -> str:
    """The error's first line, without an announcement of the lines below it."""
    first = str(error).partition("\n")[0]
    if not first.endswith(":"):
        return first
    return first.rpartition("; ")[0] or first.removesuffix(":")


def last_driver_line(error: DeviceLostError) -> str:
    """The last line printed by the driver or its compiler; empty if there is none.

    A failing compiler prints its reason there before it ends the process.
    """
    below = str(error).partition("\n")[2]
    for text in (below, error.driver_log):
        printed = _NOT_THE_DRIVER.sub("", text).split("\n")
        said = [line.strip() for line in printed if line.strip()]
        if said:
            return said[-1]
    return ""


def with_context(error: Lost, *, before: str = "", after: str = "") -> Lost:
    """The same error with text before and after its first line; further lines are unchanged."""
    rest = str(error).partition("\n")[2]
    changed = copy.copy(error)
    changed.args = (f"{before}{headline(error)}{after}" + (f"\n{rest}" if rest else ""),)
    return changed
