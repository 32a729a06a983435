"""What a command was doing when it ended, by what it said."""

from __future__ import annotations

import re


def last_phase(errors: str) -> str:
    """What a killed command was doing, by the last line it wrote; empty before its first."""
    lines = [line for line in errors.splitlines() if line] or [""]
    return re.sub(r"^\[.*", "move operators", lines[-1]).partition(":")[0]
