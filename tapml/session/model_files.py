"""Records of the files of a model's folder, to detect changes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Self, TypeAlias

from msgspec import Meta, Struct

# Types of files that loading a model may read.
_READ: Final = (".json", ".safetensors", ".model", ".txt", ".jinja")

FileName: TypeAlias = Annotated[str, Meta(pattern=r"^(?!\.\.?\Z)[^/\0]*\Z")]
"""The name of a file, without path separators."""


class FileRecord(Struct, frozen=True):
    """The size of a file in bytes, its change time in ns, and the SHA-256 of its content.

    The change time (ctime) cannot be set, unlike the modification time, which archives and copies
    may restore for another content.
    """

    size: int
    ctime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Record a file; reads all of it."""
        with path.open("rb") as stream:
            state = os.fstat(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(state.st_size, state.st_ctime_ns, digest)

    def refreshed(self, path: Path) -> Self | None:
        """The current record of a file; None if its content has changed.

        The file is read only if its time differs, for example because it was copied or restored.
        """
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size != self.size:
            return None
        if state.st_ctime_ns == self.ctime_ns:
            return self
        found = type(self).of(path)
        return found if found.sha256 == self.sha256 else None


FileRecords: TypeAlias = Annotated[dict[FileName, FileRecord], Meta(max_length=4096)]
"""Records by name."""


def record_files(model: Path, beside: Sequence[str] = ()) -> dict[str, FileRecord]:
    """Record the files of a model's folder that loading it may read, by name.

    Of a model that is a file: itself and those `beside` it.
    """
    return {path.name: FileRecord.of(path) for path in _files(model, beside)}


def compare_files(
    folder: Path, records: Mapping[str, FileRecord]
) -> tuple[str, dict[str, FileRecord]]:
    """Compare a model's folder with its records.

    Returns
    -------
    tuple
        The first difference in a few words, empty if there is none; and without a difference, the
        current records, which save the next comparison from reading the files again.
    """
    found: dict[str, FileRecord] = {}
    try:
        present = {path.name: path for path in _files(folder, records)}
        for name, record in records.items():
            if name not in present:
                return f"{name} is gone", {}
            refreshed = record.refreshed(present[name])
            if refreshed is None:
                return f"{name} has changed", {}
            found[name] = refreshed
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}", {}
    added = sorted(present.keys() - records.keys())
    return (f"{added[0]} is new", {}) if added else ("", found)


def _files(folder: Path, beside: Iterable[str]) -> list[Path]:
    if not folder.is_dir():
        files = (folder.parent / name for name in {folder.name, *beside})
        return sorted(path for path in files if path.is_file())
    return sorted(p for p in folder.iterdir() if p.suffix in _READ and p.is_file())
