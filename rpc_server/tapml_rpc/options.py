"""Values on a command line: ports, seconds, bytes."""

from __future__ import annotations

import argparse
from typing import Final

_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DIGITS: Final = 15
_LAST_PORT: Final = 65535
_PORT_DIGITS: Final = 5


def port_number(text: str) -> int:
    """Parse a port, 0 for a free one; raises argparse.ArgumentTypeError."""
    if text.isascii() and text.isdigit() and len(text) <= _PORT_DIGITS and int(text) <= _LAST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a port from 0 to {_LAST_PORT}, got {text!r}")


def positive_seconds(text: str) -> float:
    """Parse seconds above zero; raises argparse.ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # False for NaN, too.
    if seconds > 0:
        return seconds
    raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")


def byte_count(text: str) -> int:
    """Parse a number of bytes: ``1048576``, ``512M``, ``4G``; raises argparse.ArgumentTypeError."""
    digits, unit = text[:-1], _UNITS.get(text[-1:].upper(), 0)
    if not unit:
        digits, unit = text, 1
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS):
        raise argparse.ArgumentTypeError(f"expected bytes such as 512M or 4G, got {text!r}")
    return int(digits) * unit
