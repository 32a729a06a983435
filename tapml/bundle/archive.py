"""Zip archives that come from anywhere: bounded, plain files only, the same bytes every time.

Written: sorted names, one timestamp, no machine's attributes. Read: nothing in the archive is
trusted. How many entries there are, what they are called and how large they get is checked before
anything is unpacked, so that no name leads out of the folder and no bomb goes off.
"""

from __future__ import annotations

import contextlib
import errno
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tapml_targets.errors import InputError, SetupError

MAX_FILES: Final = 512
MAX_FILE_BYTES: Final = 1 << 30
MAX_TOTAL_BYTES: Final = 2 << 30
_MAX_DIRECTORY_BYTES: Final = 1 << 20
_MAX_PARTS: Final = 3
# The oldest a zip archive knows.
_TIMESTAMP: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = stat.S_IFREG | 0o644
_UNIX: Final = 3
_PIECE: Final = 1 << 20
_PART: Final = re.compile(r"(?!\.)[\w.+$@-]{1,160}", re.ASCII)
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED: Final = 0x1
# The end record without a comment, and what stands before it in an archive of the 64-bit form.
_END: Final = struct.Struct("<4s4H2LH")
_END_MAGIC: Final = b"PK\x05\x06"
_LOCATOR_MAGIC: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20


def write_archive(path: Path, files: Mapping[str, Path | bytes]) -> None:
    """Write an archive, whole or not at all; the same files give the same bytes.

    Parameters
    ----------
    path
        Where; one that is there is replaced.
    files
        Contents, or the file they are in, by name in the archive.

    Raises
    ------
    InputError
        If there are too many bytes or files for an archive that :func:`extract_archive` takes.
    SetupError
        If it cannot be written.
    """
    sizes = [len(c) if isinstance(c, bytes) else c.stat().st_size for c in files.values()]
    if len(sizes) > MAX_FILES or max(sizes, default=0) > MAX_FILE_BYTES:
        raise InputError(
            f"{path.name} would have {len(sizes)} files of up to {max(sizes)} bytes, at most "
            f"{MAX_FILES} of {MAX_FILE_BYTES} are taken: choose a smaller test, or "
            "`tapml reduce` this one"
        )
    if sum(sizes) > MAX_TOTAL_BYTES:
        raise InputError(
            f"{path.name} would hold {sum(sizes)} bytes, at most {MAX_TOTAL_BYTES} are taken: "
            "choose a smaller test, or `tapml reduce` this one"
        )
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                _add(archive, name, files[name])
        partial.replace(path)
    except OSError as error:
        raise SetupError(
            f"cannot write {path}: {error.strerror}; free some space or choose another place (-o)"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


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
        If the file is no archive, is damaged, or holds anything but a bounded number of plain files
        of bounded size under plain names.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _END.size - _LOCATOR_BYTES))
            _check_end(path, size, file.read())
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                _check_entries(path, entries)
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
        # A name is a file here and a folder there.
        FileExistsError,
        NotADirectoryError,
    ) as error:
        raise InputError(f"{path} is no bundle, or damaged: {error}; copy it again") from error
    except OSError as error:
        # An offset before the beginning of the file; a full disk is no fault of the archive.
        if error.errno != errno.EINVAL:
            raise
        raise InputError(f"{path} is no bundle, or damaged: {error}; copy it again") from error


def _check_end(path: Path, size: int, tail: bytes) -> None:
    """Hold what the archive's end claims against bounds before its directory is read."""
    if size > MAX_TOTAL_BYTES or len(tail) < _END.size:
        raise InputError(f"{path} has {size} bytes; a bundle has {_END.size} to {MAX_TOTAL_BYTES}")
    magic, disk, first, here, count, directory, _, comment = _END.unpack(tail[-_END.size :])
    if magic != _END_MAGIC or comment:
        raise InputError(f"{path} is no bundle: it does not end as a zip archive of tapml does")
    if tail[: -_END.size].startswith(_LOCATOR_MAGIC) or disk or first or here != count:
        raise InputError(f"{path} is no bundle: it is a split or a 64-bit zip archive")
    if count > MAX_FILES or directory > _MAX_DIRECTORY_BYTES:
        raise InputError(
            f"{path} claims {count} entries in {directory} bytes; a bundle has at most "
            f"{MAX_FILES} in {_MAX_DIRECTORY_BYTES}"
        )


def _check_entries(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_FILES:
        raise InputError(f"{path} has {len(entries)} entries; a bundle has at most {MAX_FILES}")
    names = {entry.filename.casefold() for entry in entries}
    if len(names) != len(entries):
        raise InputError(f"{path} is no bundle: two of its entries have one name")
    for entry in entries:
        problem = _problem(entry)
        if problem:
            raise InputError(f"{path} is no bundle: its entry {entry.filename[:80]!r} {problem}")
    total = sum(entry.file_size for entry in entries)
    if total > MAX_TOTAL_BYTES:
        raise InputError(f"{path} unpacks to {total} bytes; a bundle has at most {MAX_TOTAL_BYTES}")


def _problem(entry: zipfile.ZipInfo) -> str:
    """What is wrong with an entry, empty if nothing is."""
    parts = entry.orig_filename.split("/")
    if len(parts) > _MAX_PARTS or not all(_PART.fullmatch(part) for part in parts):
        return "has a name that no bundle has"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        return "is no plain file"
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
        # No more than the size that was checked is ever given out, whatever the data says.
        while piece := source.read(_PIECE):
            written += len(piece)
            file.write(piece)
    if written != entry.file_size:
        raise InputError(f"{entry.filename} ends after {written} of {entry.file_size} bytes")
