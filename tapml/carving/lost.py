"""A lost device in words: what was tried on it, and how to go on."""

from __future__ import annotations

from typing import Final

from tapml_targets.errors import DeviceLostError

LOST: Final = "the device was lost: "
"""What the reason of a verdict begins with where a kernel took its device down."""

UNBUILT: Final = "the device does not build its kernels: "
"""What it begins with where the device's compiler refused the kernels."""


def rephrased(error: DeviceLostError, *, before: str = "", after: str = "") -> DeviceLostError:
    """The same error with text before and after its first line; the lines below it stay."""
    first, _, rest = str(error).partition("\n")
    if first.endswith(":"):
        # It announces the lines below, which the command line shows on demand only.
        first = first.rpartition("; ")[0] or first.removesuffix(":")
    return type(error)(
        f"{before}{first}{after}" + (f"\n{rest}" if rest else ""),
        remote_traceback=error.remote_traceback,
        command=error.command,
        driver_log=error.driver_log,
    )
