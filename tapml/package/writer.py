"""Writes a package atomically, as a folder or an archive."""

from __future__ import annotations

import hashlib
import shutil
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tapml.durable.files import replace_file, replace_folder, writing
from tapml.models.tensor_file import Sink
from tapml.package.files import is_package
from tapml.package.manifest import MANIFEST, StoredFile
from tapml_targets.errors import InputError, SetupError

# Alignment of weights in an archive.
ALIGNMENT: Final = 64
# The oldest a zip archive knows: the same package gives the same bytes.
_TIMESTAMP: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = stat.S_IFREG | 0o644
_UNIX: Final = 3
_LOCAL_HEADER_BYTES: Final = 30
# The field for sizes above 4 GB, which is always written.
_LARGE_FIELD_BYTES: Final = 20
# The field other tools use to move an entry to a boundary: id, size, boundary.
_ALIGNMENT_FIELD: Final = struct.Struct("<HHH")
_ALIGNMENT_ID: Final = 0xD935
_SLACK_BYTES: Final = 1 << 20


class HashingSink:
    """Passes on what is written and counts and hashes it."""

    def __init__(self, inner: Sink) -> None:
        self._inner = inner
        self._digest = hashlib.sha256()
        self._nbytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        self._inner.write(data)
        self._digest.update(data)
        self._nbytes += memoryview(data).nbytes

    @property
    def stored(self) -> StoredFile:
        """Size and hash of what was written."""
        return StoredFile(self._nbytes, self._digest.hexdigest())


class PackageWriter:
    """Files of a package on their way to a folder or an archive.

    Attributes
    ----------
    files
        What was written so far.
    """

    def __init__(self, target: Path | zipfile.ZipFile) -> None:
        self.files: dict[str, StoredFile] = {}
        self._target = target

    def add(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self.stream(name, len(content)) as stream:
            stream.write(content)

    @contextmanager
    def stream(self, name: str, nbytes: int) -> Iterator[HashingSink]:
        """A file of `nbytes` bytes or a little more, to write in the block."""
        with self._open(name, nbytes) as inner:
            sink = HashingSink(inner)
            yield sink
        self.files[name] = sink.stored

    def _open(self, name: str, nbytes: int) -> IO[bytes]:
        if isinstance(self._target, Path):
            return (self._target / name).open("wb")
        assert self._target.fp is not None  # noqa: S101 - it is open
        info = _entry(name, self._target.fp.tell(), nbytes)
        return self._target.open(info, "w", force_zip64=True)


@contextmanager
def new_package(path: Path, *, archive: bool, nbytes: int) -> Iterator[PackageWriter]:
    """A package to write in the block; it appears complete at the end of the block.

    Parameters
    ----------
    path
        The folder or the archive; a package that is there is replaced at the end.
    archive
        Whether it is one file.
    nbytes
        About its size, to check the free space.

    Raises
    ------
    SetupError
        If it cannot be written; the old content stays.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
    if free < nbytes + _SLACK_BYTES:
        raise SetupError(
            f"the package takes {nbytes / 1e6:.1f} MB and {path.parent} has {free / 1e6:.1f} MB "
            "free: free some space, or write it elsewhere (--out)"
        )
    if archive:
        with (
            writing(path),
            replace_file(path) as partial,
            zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as zipped,
        ):
            yield PackageWriter(zipped)
    else:
        with replace_folder(path) as folder:
            yield PackageWriter(folder)


def check_place(path: Path, *, archive: bool, force: bool) -> None:
    """Refuse a place where something else would be lost.

    Raises
    ------
    InputError
        If something is there: with `force`, if it is no package of the same form.
    """
    if not path.exists() or (path.is_dir() and not archive and not any(path.iterdir())):
        return
    ours = is_package(path) and path.is_dir() != archive
    if not force:
        remedy = "--force replaces it" if ours else "choose another place (--out)"
        raise InputError(f"{path} exists already: {remedy}")
    if not ours:
        what = "an archive" if archive else f"a folder with {MANIFEST}"
        raise InputError(
            f"{path} is not {what} made by `tapml package`, so --force does not replace it: choose "
            "another place (--out)"
        )


def _entry(name: str, position: int, nbytes: int) -> zipfile.ZipInfo:
    """An entry whose data begins on a boundary."""
    info = zipfile.ZipInfo(name, _TIMESTAMP)
    info.compress_type = zipfile.ZIP_STORED
    info.create_system = _UNIX
    info.external_attr = _MODE << 16
    info.file_size = nbytes
    fixed = _LOCAL_HEADER_BYTES + len(name.encode()) + _LARGE_FIELD_BYTES + _ALIGNMENT_FIELD.size
    padding = -(position + fixed) % ALIGNMENT
    info.extra = _ALIGNMENT_FIELD.pack(_ALIGNMENT_ID, 2 + padding, ALIGNMENT) + bytes(padding)
    return info
