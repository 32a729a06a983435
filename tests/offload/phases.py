"""What a command was doing when it ended, by what it said."""

from __future__ import annotations

import re
from typing import Final

_OF_NO_PHASE: Final = ("note:", "tapml:")


def last_phase(errors: str) -> str:
    """The phase that a killed command had last spoken of; empty before its first line."""
    lines = [each for each in errors.splitlines() if each and not each.startswith(_OF_NO_PHASE)]
    lines = lines or [""]
    return re.sub(r"^\[.*", "move operators", lines[-1]).partition(":")[0]
