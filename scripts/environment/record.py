"""What an environment is known to hold.

The record is written as unfinished before the first file of the environment and as finished after
the last, each time by one rename: whatever interrupts a set-up leaves it unfinished, and an
unfinished environment is made anew, because pip takes a half-unpacked package for an installed one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD_NAME = "tapml-setup.json"
FORMAT = 1


@dataclass(frozen=True)
class Record:
    """The content of the record file.

    Attributes
    ----------
    finished
        Whether the last set-up ran to its end.
    key
        What the environment was made from, see `requirements_key`.
    extras
        The extras of the distribution that are installed, sorted.
    interpreter
        The file behind the environment's Python: an upgrade of it asks for a new environment.
    """

    finished: bool
    key: str
    extras: tuple[str, ...]
    interpreter: str


def requirements_key(root: Path) -> str:
    """Hash what decides the environment's content: the requirements and the Python version.

    The settings of ruff, mypy and pytest are in the same file and ask for no set-up.
    """
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    built_from = {name: tables.get(name) for name in ("build-system", "project")}
    built_from["hatch"] = tables.get("tool", {}).get("hatch")
    digest = hashlib.sha256(f"{FORMAT} {sys.implementation.cache_tag}".encode())
    digest.update(json.dumps(built_from, sort_keys=True).encode())
    digest.update((root / "constraints.txt").read_bytes())
    return digest.hexdigest()


def python_of(folder: Path) -> Path:
    """Return the environment's interpreter."""
    return folder / "bin" / "python"


def read_record(folder: Path) -> Record | None:
    """Return the record of `folder`, or None if there is none that can be read."""
    try:
        fields = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
        return Record(
            finished=fields["finished"] is True,
            key=str(fields["key"]),
            extras=tuple(map(str, fields["extras"])),
            interpreter=str(fields["interpreter"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """Put the record in place, whole."""
    temporary = folder / f"{RECORD_NAME}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(record), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / RECORD_NAME)


def is_intact(folder: Path, record: Record | None) -> bool:
    """Whether an earlier set-up came to its end and its interpreter is still the same file."""
    return (
        record is not None
        and record.finished
        and python_of(folder).exists()
        and os.path.realpath(python_of(folder)) == record.interpreter
    )
