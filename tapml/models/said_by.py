"""What an error of a library says, in one line."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 300


def said_by(error: BaseException) -> str:
    """The first line of an error, with those after it while they end in a colon; never empty."""
    said = ""
    for line in filter(None, map(str.strip, str(error).splitlines())):
        said = f"{said} {line}".strip()
        if not said.endswith(":"):
            break
    return said[:_LONGEST] or type(error).__name__
