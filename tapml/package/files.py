"""Reading a package's files, from a folder or from an archive, in place.

An archive stores files uncompressed, so weights are mapped without unpacking. Files are checked
against the manifest.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tapml.durable.files import recover_folder
from tapml.models.tensor_file import TensorFile, open_tensors
from tapml.package.manifest import LIBRARY, MANIFEST, MAX_MANIFEST_BYTES, PLAN, WEIGHTS, Manifest
from tapml.plan import format as plan_format
from tapml.plan.graph_plan import GraphPlan
from tapml_targets import library_format
from tapml_targets.errors import InputError, ProtocolError, SetupError
from tapml_targets.library import Library

# Files read into memory: plan, Library, tokenizer.
MAX_FILE_BYTES: Final = 1 << 30
_MOST_ENTRIES: Final = 256
_PIECE_BYTES: Final = 4 << 20
_LOCAL_HEADER: Final = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_ENCRYPTED: Final = 0x1


@dataclass(frozen=True)
class Place:
    """Where a file's bytes lie."""

    path: Path
    offset: int
    nbytes: int


def unpack_programs(path: Path, contents: Mapping[str, bytes]) -> tuple[GraphPlan, Library]:
    """The plan and the Library among the files of the package at `path`.

    Raises
    ------
    InputError
        If one of them is damaged or of another version.
    """
    try:
        return plan_format.unpack(contents[PLAN]), library_format.unpack(contents[LIBRARY])
    except ProtocolError as error:
        raise InputError(
            f"the package {path} cannot be used ({error}): make it again with `tapml package`"
        ) from error


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
        tensors = open_tensors(place.path, offset=place.offset, nbytes=place.nbytes)
        found, expected = tensors.header_sha256, self.manifest.weights_header_sha256
        if found != expected:
            raise self._damaged(f"the header of {WEIGHTS} has SHA-256 {found}, expected {expected}")
        return tensors

    def check_weights(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read all weights and check their hash; `progress` gets bytes read, and all bytes.

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
            "it again with `tapml package`"
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
        What was done; empty if nothing was, also if the place is read-only.
    """
    try:
        return recover_folder(path)
    except SetupError:
        return ""


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
            f"{path} is not a complete package ({error}): expected a folder or a zip "
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
