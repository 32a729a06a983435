"""The files of a model's folder as they were when a session kept what it made of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from tapml_targets.errors import InputError

# What loading a model may read; a folder may hold much else (README, pictures, other formats).
_READ: Final = (".json", ".safetensors", ".model", ".txt", ".jinja")
_MOST_FILES: Final = 4096


@dataclass(frozen=True)
class FileRecord:
    """One file: its size in bytes, when it changed (ns), and the SHA-256 of its content.

    The time is that of the file's status, which nobody sets: an archive or a copy gives another
    content the same time of modification.
    """

    size: int
    ctime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """The file as it is now; reads all of it.

        Raises
        ------
        OSError
            If it cannot be read.
        """
        with path.open("rb") as stream:
            state = os.fstat(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(state.st_size, state.st_ctime_ns, digest)

    def renewed(self, path: Path) -> Self | None:
        """The record as of now; None where the file's content is another.

        By size and time; where the time is another, for the file was copied or restored, by the
        content itself.

        Raises
        ------
        OSError
            If it cannot be read.
        """
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size != self.size:
            return None
        if state.st_ctime_ns == self.ctime_ns:
            return self
        found = type(self).of(path)
        return found if found.sha256 == self.sha256 else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read back what :meth:`to_json` gave.

        Raises
        ------
        InputError
            If it is something else.
        """
        match data:
            case {"size": int(size), "ctime_ns": int(ctime_ns), "sha256": str(sha256)}:
                return cls(size, ctime_ns, sha256)
        raise InputError("the record of a file: expected its size, time and hash")


def record_files(folder: Path) -> dict[str, FileRecord]:
    """The files of a model's folder that loading it may read, by name.

    Raises
    ------
    OSError
        If one of them cannot be read.
    """
    return {path.name: FileRecord.of(path) for path in _files(folder)}


def look_again(
    folder: Path, records: Mapping[str, FileRecord]
) -> tuple[str, dict[str, FileRecord]]:
    """Hold a model's folder against what was recorded of it.

    Returns
    -------
    tuple
        What is no longer as it was, in a few words, empty for nothing; and where nothing is the
        records as of now, by which the next look needs to read no file that this one has read.
    """
    found: dict[str, FileRecord] = {}
    try:
        present = {path.name: path for path in _files(folder)}
        for name, record in records.items():
            if name not in present:
                return f"{name} is gone", {}
            renewed = record.renewed(present[name])
            if renewed is None:
                return f"{name} has changed", {}
            found[name] = renewed
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}", {}
    added = sorted(present.keys() - records.keys())
    return (f"{added[0]} is new", {}) if added else ("", found)


def read_records(data: object) -> dict[str, FileRecord]:
    """Read back records by name, as plain data.

    Raises
    ------
    InputError
        If it is something else, or a name is no plain file name.
    """
    if not isinstance(data, dict) or len(data) > _MOST_FILES:
        raise InputError("records of files: expected an object with at most 4096 names")
    for name in data:
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"records of files: {str(name)[:80]!r} is no plain file name")
    return {name: FileRecord.from_json(record) for name, record in data.items()}


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in _READ and p.is_file())
