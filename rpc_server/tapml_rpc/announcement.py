"""The one line a server prints on standard output, for whoever started it."""

from __future__ import annotations

import json
import os
from typing import Any


def announce(line: dict[str, Any]) -> None:
    """Print a line of JSON, the last that standard output gets.

    Drivers print what they like; the line's reader must not mistake it for another line. So
    standard output is standard error from before the line is there to be read.
    """
    output = os.dup(1)
    try:
        os.dup2(2, 1)
        os.write(output, json.dumps(line).encode() + b"\n")
    finally:
        os.close(output)
