"""Zip archives from untrusted sources: bounded, plain files only, reproducible bytes.

Written with sorted names, one timestamp and no attributes of the machine. On reading, the number,
names and sizes of the entries are checked before anything is unpacked, so that no path escapes the
folder and no decompression bomb is unpacked.
"""

from __future__ import annotations

import errno
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tapml.durable.files import replace_file
from tapml_targets.errors import InputError, SetupError

MAX_FILES: Final = 512
MAX_FILE_BYTES: Final = 1 << 30
MAX_TOTAL_BYTES: Final = 2 << 30
_MAX_DIRECTORY_BYTES: Final = 1 << 20
_MAX_PARTS: Final = 3
# The earliest time that zip supports.
_TIMESTAMP: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = stat.S_IFREG | 0o644
_UNIX: Final = 3
_PIECE: Final = 1 << 20
_PART: Final = re.compile(r"(?!\.)[\w.+$@-]{1,160}", re.ASCII)
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED: Final = 0x1
# The end record without a comment, and the record before it in a 64-bit archive.
_END: Final = struct.Struct("<4s4H2LH")
_END_MAGIC: Final = b"PK\x05\x06"
_LOCATOR_MAGIC: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20


def write_archive(path: Path, files: Mapping[str, Path | bytes]) -> None:
    """Write an archive atomically; the same files give the same bytes.

    Parameters
    ----------
    path
        The archive; an existing one is replaced.
    files
        Contents, or paths of files, by name in the archive.

    Raises
    ------
    InputError
        If the archive would exceed the limits of :func:`extract_archive`.
    SetupError
        If it cannot be written.
    """
    sizes = [len(c) if isinstance(c, bytes) else c.stat().st_size for c in files.values()]
    if len(sizes) > MAX_FILES or max(sizes, default=0) > MAX_FILE_BYTES:
        raise InputError(
            f"{path.name} would have {len(sizes)} files of up to {max(sizes)} bytes, at most "
            f"{MAX_FILES} of {MAX_FILE_BYTES} are allowed: choose a smaller test, or "
            "`tapml reduce` this one"
        )
    if sum(sizes) > MAX_TOTAL_BYTES:
        raise InputError(
            f"{path.name} would hold {sum(sizes)} bytes, at most {MAX_TOTAL_BYTES} are allowed: "
            "choose a smaller test, or `tapml reduce` this one"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replace_file(path) as partial,
            zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name in sorted(files):
                _add(archive, name, files[name])
    except OSError as error:
        raise SetupError(
            f"cannot write {path}: {error.strerror}; free some space or choose another place (-o)"
        ) from error


def _add(archive: zipfile.ZipFile, name: str, content: Path | bytes) -> None:
    entry = zipfile.ZipInfo(name, _TIMESTAMP)
    entry.create_system = _UNIX
    entry.external_attr = _MODE << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    if isinstance(content, bytes):
        archive.writestr(entry, content)
        return
    with content.open("rb") as source, archive.open(entry, "w") as target:
        while piece := source.read(_PIECE):
            target.write(piece)


def extract_archive(path: Path, folder: Path) -> None:
    """Unpack an archive into an empty folder.

    Raises
    ------
    InputError
        If the file is not an archive, is damaged, or does not consist of plain files within the
        limits on number, size and names.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _END.size - _LOCATOR_BYTES))
            count = _check_end(path, size, file.read())
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                _check_entries(path, entries, count)
                for entry in entries:
                    _extract(archive, entry, folder)
    except FileNotFoundError:
        raise InputError(f"there is no bundle at {path}") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        NotImplementedError,
        # The same name is both a file and a folder.
        FileExistsError,
        NotADirectoryError,
    ) as error:
        raise InputError(f"{path} is not a valid bundle: {error}; copy it again") from error
    except OSError as error:
        # An offset before the beginning of the file. A full disk is not an error of the archive.
        if error.errno != errno.EINVAL:
            raise
        raise InputError(f"{path} is not a valid bundle: {error}; copy it again") from error


def _check_end(path: Path, size: int, tail: bytes) -> int:
    """Check the sizes in the archive's end record before its directory is read; return how many."""
    if size > MAX_TOTAL_BYTES or len(tail) < _END.size:
        raise InputError(f"{path} has {size} bytes; a bundle has {_END.size} to {MAX_TOTAL_BYTES}")
    magic, disk, first, here, count, directory, _, comment = _END.unpack(tail[-_END.size :])
    if magic != _END_MAGIC or comment:
        raise InputError(f"{path} is not a bundle: it does not end like a zip archive of tapml")
    if tail[: -_END.size].startswith(_LOCATOR_MAGIC) or disk or first or here != count:
        raise InputError(f"{path} is not a bundle: it is a split or a 64-bit zip archive")
    if count > MAX_FILES or directory > _MAX_DIRECTORY_BYTES:
        raise InputError(
            f"{path} claims {count} entries in {directory} bytes; a bundle has at most "
            f"{MAX_FILES} in {_MAX_DIRECTORY_BYTES}"
        )
    return int(count)


def _check_entries(path: Path, entries: list[zipfile.ZipInfo], count: int) -> None:
    if len(entries) > MAX_FILES:
        raise InputError(f"{path} has {len(entries)} entries; a bundle has at most {MAX_FILES}")
    # A damaged length in the directory makes one entry swallow those behind it.
    if len(entries) != count:
        raise InputError(f"{path} is not a valid bundle: it has {len(entries)} of {count} entries")
    names = {entry.filename.casefold() for entry in entries}
    if len(names) != len(entries):
        raise InputError(f"{path} is not a bundle: two of its entries have the same name")
    for entry in entries:
        problem = _problem(entry)
        if problem:
            raise InputError(f"{path} is not a bundle: its entry {entry.filename[:80]!r} {problem}")
    total = sum(entry.file_size for entry in entries)
    if total > MAX_TOTAL_BYTES:
        raise InputError(f"{path} unpacks to {total} bytes; a bundle has at most {MAX_TOTAL_BYTES}")


def _problem(entry: zipfile.ZipInfo) -> str:
    """The problem with an entry; empty if there is none."""
    parts = entry.orig_filename.split("/")
    if len(parts) > _MAX_PARTS or not all(_PART.fullmatch(part) for part in parts):
        return "has a name that is not allowed"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        return "is not a plain file"
    if entry.flag_bits & _ENCRYPTED:
        return "is encrypted"
    if entry.compress_type not in _METHODS:
        return f"is compressed by an unknown method ({entry.compress_type})"
    if entry.file_size > MAX_FILE_BYTES:
        return f"unpacks to {entry.file_size} bytes, more than {MAX_FILE_BYTES}"
    return ""


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> None:
    target = folder / entry.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with archive.open(entry) as source, target.open("xb") as file:
        # Never read more than the checked size, whatever the data claims.
        while piece := source.read(_PIECE):
            written += len(piece)
            file.write(piece)
    if written != entry.file_size:
        raise InputError(f"{entry.filename} ends after {written} of {entry.file_size} bytes")
