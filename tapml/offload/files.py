"""Files that are whole or not there: a reader sees the old content or the new, never half."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file as a whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole with UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: object) -> None:
    """Replace a file as a whole with JSON."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False))
