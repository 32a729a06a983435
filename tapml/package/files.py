"""Reading a package's files, from a folder or from an archive, in place.

An archive holds every file as it is, so that a file is a stretch of it: weights are mapped where
they lie, and nothing has to be unpacked. What is in the package is checked against its manifest.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tapml.durable.files import recover_folder
from tapml.models.tensor_file import TensorFile, open_tensors
from tapml.package.manifest import MANIFEST, MAX_MANIFEST_BYTES, WEIGHTS, Manifest
from tapml_targets.errors import InputError, SetupError

# What is read into memory: a plan, a Library, a tokenizer.
MAX_FILE_BYTES: Final = 1 << 30
_MOST_ENTRIES: Final = 256
_PIECE_BYTES: Final = 4 << 20
_LOCAL_HEADER: Final = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_ENCRYPTED: Final = 0x1
_PREFIX: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class Place:
    """Where a file's bytes lie."""

    path: Path
    offset: int
    nbytes: int


class PackageFiles:
    """The files of a package, checked against its manifest.

    Parameters
    ----------
    path
        A folder made by ``tapml package``, or an archive of one.

    Attributes
    ----------
    manifest
        What the package says of itself.

    Raises
    ------
    InputError
        If it is no package, or a file is missing or of another size than the manifest says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places = _in_folder(path) if path.is_dir() else _in_archive(path)
        if MANIFEST not in self._places:
            raise InputError(
                f"{path} is no package: expected {MANIFEST} in it, as `tapml package` writes it"
            )
        try:
            self.manifest = Manifest.from_bytes(self._bytes(MANIFEST, MAX_MANIFEST_BYTES))
        except InputError as error:
            raise InputError(f"the package {path} cannot be used: {error}") from error
        for name, stored in self.manifest.files.items():
            place = self._places.get(name)
            if place is None or place.nbytes != stored.bytes:
                has = "is missing" if place is None else f"has {place.nbytes} bytes"
                raise self._damaged(f"{name} {has}, expected {stored.bytes}")

    def read_all(self) -> dict[str, bytes]:
        """The content of every file but the weights, after its hash was checked.

        Raises
        ------
        InputError
            If one is not what the manifest says; the message has both hashes.
        """
        contents: dict[str, bytes] = {}
        for name in self.manifest.files:
            if name != WEIGHTS:
                contents[name] = self._bytes(name, MAX_FILE_BYTES)
                self._check(name, hashlib.sha256(contents[name]).hexdigest())
        return contents

    def place(self, name: str) -> Place:
        """Where a file of the manifest lies."""
        return self._places[name]

    def weights(self) -> TensorFile:
        """The weights, mapped; their header is checked, their data is not.

        Raises
        ------
        InputError
            If the header is not what the manifest says.
        """
        place = self.place(WEIGHTS)
        with place.path.open("rb") as stream:
            found = header_hash(stream, place)
        if found != self.manifest.weights_header_sha256:
            raise self._damaged(
                f"the header of {WEIGHTS} has SHA-256 {found}, expected "
                f"{self.manifest.weights_header_sha256}"
            )
        return open_tensors(place.path, offset=place.offset, nbytes=place.nbytes)

    def check_weights(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read all weights and check their hash; `progress` is told bytes read, and all bytes.

        Raises
        ------
        InputError
            If it is not what the manifest says.
        """
        place = self.place(WEIGHTS)
        digest = hashlib.sha256()
        left = place.nbytes
        with place.path.open("rb") as stream:
            stream.seek(place.offset)
            while left and (piece := stream.read(min(left, _PIECE_BYTES))):
                digest.update(piece)
                left -= len(piece)
                if progress is not None:
                    progress(place.nbytes - left, place.nbytes)
        self._check(WEIGHTS, digest.hexdigest())

    def _bytes(self, name: str, most: int) -> bytes:
        place = self._places[name]
        if place.nbytes > most:
            raise self._damaged(f"{name} has {place.nbytes} bytes, expected at most {most}")
        try:
            with place.path.open("rb") as stream:
                stream.seek(place.offset)
                return stream.read(place.nbytes)
        except OSError as error:
            raise InputError(f"cannot read {name} in {self.path}: {error.strerror}") from error

    def _check(self, name: str, found: str) -> None:
        expected = self.manifest.files[name].sha256
        if found != expected:
            raise self._damaged(f"{name} has SHA-256 {found}, expected {expected}")

    def _damaged(self, reason: str) -> InputError:
        return InputError(
            f"the package {self.path} is damaged or was edited: {reason}; fetch it again, or make "
            "it anew with `tapml package`"
        )


def is_package(path: Path) -> bool:
    """Whether a path is a folder with a manifest, or a zip archive."""
    return (path / MANIFEST).is_file() if path.is_dir() else zipfile.is_zipfile(path)


def has_manifest(path: Path) -> bool:
    """Whether a folder or a zip archive has a package's manifest: other archives have none."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return False


def recover_package(path: Path) -> str:
    """Bring in order what a killed ``tapml package --force`` left at a path.

    Returns
    -------
    str
        What was done, a sentence; empty where there was nothing to do, or where it cannot be done:
        whoever reads a package need not be able to write beside it.
    """
    try:
        return recover_folder(path)
    except SetupError:
        return ""


def header_hash(stream: BinaryIO, place: Place) -> str:
    """SHA-256 of what stands before the data in a file of tensors."""
    stream.seek(place.offset)
    prefix = stream.read(min(_PREFIX.size, place.nbytes))
    length = _PREFIX.unpack(prefix)[0] if len(prefix) == _PREFIX.size else 0
    # A length that cannot be is refused when the file is opened.
    return hashlib.sha256(prefix + stream.read(min(length, place.nbytes, 1 << 27))).hexdigest()


def _in_folder(folder: Path) -> dict[str, Place]:
    try:
        return {
            path.name: Place(path, 0, path.stat().st_size)
            for path in folder.iterdir()
            if path.is_file()
        }
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error.strerror}") from error


def _in_archive(path: Path) -> dict[str, Place]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
            entries = archive.infolist()
            if len(entries) > _MOST_ENTRIES:
                raise InputError(f"{path} is no package: it has {len(entries)} entries")
            return {entry.filename: _stretch(path, stream, entry) for entry in entries}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise InputError(
            f"{path} is no package, or not a whole one ({error}): expected a folder or a zip "
            "archive made by `tapml package`"
        ) from error


def _stretch(path: Path, stream: BinaryIO, entry: zipfile.ZipInfo) -> Place:
    """Where the bytes of an entry lie in the archive."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
        raise InputError(
            f"{entry.filename} in {path} is compressed or encrypted: a package stores its files as "
            "they are; unpack the archive and use the folder"
        )
    stream.seek(entry.header_offset)
    magic, *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    if magic != _LOCAL_MAGIC:
        raise zipfile.BadZipFile(f"{entry.filename} does not begin where it should")
    start = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if start + entry.file_size > path.stat().st_size:
        raise zipfile.BadZipFile(f"{entry.filename} is cut short")
    return Place(path, start, entry.file_size)
