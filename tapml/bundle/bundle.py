"""Bundles: a repro folder in one file, with a readable launch plan.

    <operator>/README.txt        the failure, and the command to replay it
    <operator>/bundle.json       format and metadata
    <operator>/launch_plan.txt   the Library's launches as text
    <operator>/...               the repro folder (:mod:`tapml.repro.writing`)

``tapml replay FILE`` accepts it directly; unpacked by any zip program it is a repro folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tapml.bundle.archive import extract_archive, write_archive
from tapml.bundle.launch_plan import describe_launches
from tapml.replaying.failure import KERNELS
from tapml.repro.description import read_bounded, read_description
from tapml.repro.folder import Repro, read_repro
from tapml.repro.writing import (
    DESCRIPTION,
    DIAGNOSIS,
    ERRORS,
    INDEPENDENT,
    LIBRARY,
    OPERATOR,
    README,
    SCRIPT,
    SCRIPT_TEXT,
    TENSORS,
)
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape

FORMAT: Final = "tapml-bundle/2"
EXTENSION: Final = ".tapml.zip"
MANIFEST: Final = "bundle.json"
LAUNCH_PLAN: Final = "launch_plan.txt"
DOCUMENTS: Final = ("reduced.json", "synthetic.json")
"""Files of other commands in a repro folder that a bundle includes."""

_MAX_MANIFEST_BYTES: Final = 1 << 20
_HEADER_END: Final = "What follows is the README of the folder it unpacks to.\n\n"
_HEADER: Final = """\
Replay this bundle as it is, with the base install of tapml and a driver for {platform}:

  tapml replay {archive}

"""


class Manifest(msgspec.Struct, frozen=True):
    """What ``bundle.json`` holds; `synthetic` tells whether the inputs are random numbers."""

    format: str
    operator: str
    test: str
    status: str
    device: str
    synthetic: bool
    edited_kernels: tuple[str, ...]


class _Head(msgspec.Struct):
    format: str


def is_bundle(path: Path) -> bool:
    """Whether `path` names a bundle: a file, or a missing path with a bundle's extension."""
    return path.is_file() or (not path.is_dir() and path.name.endswith(EXTENSION))


def write_bundle(archive: Path, folder: Path, *, synthetic: bool = False) -> Path:
    """Write a repro folder as one file.

    Only files of the repro folder are included, with edits to kernels.

    Parameters
    ----------
    archive
        The file, ``<name>.tapml.zip``.
    folder
        The repro folder.
    synthetic
        Whether its inputs are random numbers; noted in ``bundle.json``.

    Returns
    -------
    Path
        `archive`.

    Raises
    ------
    InputError
        If `folder` is not a repro folder, is damaged, or is too large.
    SetupError
        If the file cannot be written.
    """
    repro = read_repro(folder)
    name = repro.operator.name
    manifest = Manifest(
        FORMAT,
        name,
        repro.case.id,
        repro.status,
        repro.device["name"],
        synthetic,
        tuple(repro.edited),
    )
    header = _HEADER.format(platform=repro.device["platform"], archive=archive.name)
    # A folder unpacked from a bundle has another header.
    page = (folder / README).read_text().rpartition(_HEADER_END)[-1]
    contents: dict[str, Path | bytes] = {each: folder / each for each in _members(folder)}
    contents |= {
        README: f"{header}{_HEADER_END}{page}".encode(),
        SCRIPT: SCRIPT_TEXT.encode(),
        MANIFEST: msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n",
        LAUNCH_PLAN: describe_launches(repro.library, shape_symbols(repro)).encode(),
    }
    write_archive(archive, {f"{name}/{each}": content for each, content in contents.items()})
    return archive


def _members(folder: Path) -> Iterator[str]:
    """The files of a repro folder, from its description."""
    description = read_description(folder)
    yield from (DESCRIPTION, LIBRARY, ERRORS)
    for optional in (OPERATOR, DIAGNOSIS, INDEPENDENT, *DOCUMENTS):
        if (folder / optional).is_file():
            yield optional
    for kind in TENSORS:
        yield from (f"{kind}/{file}" for file in getattr(description.files, kind))
    yield from (f"{KERNELS}/{file}" for file in description.kernels if file is not None)


def shape_symbols(repro: Repro) -> dict[str, int]:
    """Values of the shape symbols of a repro folder's test, by their names in its Library."""
    symbols = dict(repro.case.symbols)
    program = repro.library.operators.get(repro.operator.name)
    for declared, tested in zip(
        program.parameters if program else (), repro.operator.parameters, strict=False
    ):
        shape = [extent for extent in tested.shape if isinstance(extent, int)]
        bind_shape(declared.shape, shape, symbols, f"parameter {tested.name}")
    return symbols


def read_bundle(path: Path) -> Repro:
    """Read and check a bundle; it is unpacked to a temporary folder.

    Raises
    ------
    InputError
        If it does not exist, is damaged, has another version, or is not a valid bundle.
    """
    with tempfile.TemporaryDirectory(prefix="tapml-bundle-") as temporary:
        return read_repro(unpack_bundle(path, Path(temporary)))


def unpack_bundle(path: Path, folder: Path) -> Path:
    """Unpack a bundle into an empty folder, and return the repro folder in it.

    Raises
    ------
    InputError
        If it does not exist, is damaged, has another version, or is not a valid bundle.
    """
    folder.mkdir(parents=True, exist_ok=True)
    extract_archive(path, folder)
    folders = list(folder.iterdir())
    if len(folders) != 1 or not folders[0].is_dir():
        raise InputError(f"{path} is not a bundle: expected one folder in it, got {len(folders)}")
    _check_manifest(path, folders[0] / MANIFEST)
    return folders[0]


def _check_manifest(path: Path, manifest: Path) -> None:
    try:
        data = read_bounded(manifest, _MAX_MANIFEST_BYTES)
        found = msgspec.json.decode(data, type=_Head).format
        if found == FORMAT:
            msgspec.json.decode(data, type=Manifest)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a bundle: {MANIFEST}: {error}; copy it again") from error
    if found != FORMAT:
        raise InputError(
            f"{path} has the format {found[:40]!r}, this tapml reads {FORMAT!r}: bundle it "
            "again, or install the tapml it was written with"
        )
