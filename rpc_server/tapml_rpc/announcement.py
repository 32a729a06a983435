"""The one line a server prints on standard output, for the process that started it.

Drivers and their layers print to standard output as well, and the reader must not mistake that for
the line. So a server that opens a device keeps standard output for the line.
"""

from __future__ import annotations

import json
import os
from typing import Any

_kept: list[int] = []


def keep_output() -> None:
    """Keep standard output for the line: from here on, what others print goes to standard error."""
    if not _kept:
        _kept.append(os.dup(1))
        os.dup2(2, 1)


def announce(line: dict[str, Any]) -> None:
    """Print a line of JSON, the last that standard output gets."""
    keep_output()
    output = _kept.pop()
    try:
        os.write(output, json.dumps(line).encode() + b"\n")
    finally:
        os.close(output)
