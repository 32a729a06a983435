"""Files that are whole or not there: a reader sees the old content or the new, never half."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tapml_targets.errors import SetupError


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file as a whole. Only the process that holds the session writes here.

    Raises
    ------
    SetupError
        If it cannot be written; what was there stays.
    """
    # Always the same name: what a killed process left is written over by the next.
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise SetupError(
            f"cannot write {path}: {error.strerror}; free some space or fix the permissions, then "
            "run it again"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole with UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: object) -> None:
    """Replace a file as a whole with JSON."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False))
