"""The one line a server prints on standard output, for the process that started it."""

from __future__ import annotations

import json
import os
from typing import Any


def announce(line: dict[str, Any]) -> None:
    """Print a line of JSON, the last that standard output gets.

    Drivers print to standard output, and the reader must not mistake that for the line: until the
    line is printed, standard output is standard error.
    """
    output = os.dup(1)
    try:
        os.dup2(2, 1)
        os.write(output, json.dumps(line).encode() + b"\n")
    finally:
        os.close(output)
