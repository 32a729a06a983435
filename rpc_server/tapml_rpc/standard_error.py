"""What an operator reads on standard error; nobody else need read on.

Its reader may be gone, as after the connection over which a server was started. That must end no
thread.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress


def say(line: str) -> None:
    """Print one line."""
    with suppress(OSError, ValueError):
        print(f"tapml: {line}", file=sys.stderr, flush=True)


def print_fault(error: BaseException) -> None:
    """Print an internal fault with its traceback: it must be seen."""
    with suppress(OSError, ValueError):
        traceback.print_exception(error, file=sys.stderr)
