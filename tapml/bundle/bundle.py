"""Bundles: a repro folder in one file, with its launch plan in words.

    <operator>/README.txt        what is wrong, and the one command
    <operator>/bundle.json       what this is
    <operator>/launch_plan.txt   what the Library does, for people
    <operator>/...               the repro folder (:mod:`tapml.carving.replay_repro`)

``tapml replay FILE`` takes it as it is; unpacked by any zip program it is a repro folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tapml.bundle.archive import extract_archive, write_archive
from tapml.bundle.launch_plan import describe_launches
from tapml.carving.replay_repro import (
    DESCRIPTION,
    DIAGNOSIS,
    ERRORS,
    INDEPENDENT,
    LIBRARY,
    OPERATOR,
    README,
    SCRIPT,
    TENSORS,
)
from tapml.carving.repro_failure import KERNELS
from tapml.carving.repro_folder import Repro, read_repro
from tapml.carving.repro_pages import SCRIPT_TEXT
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape

FORMAT: Final = "tapml-bundle/1"
EXTENSION: Final = ".tapml.zip"
MANIFEST: Final = "bundle.json"
LAUNCH_PLAN: Final = "launch_plan.txt"
DOCUMENTS: Final = ("reduced.json", "synthetic.json")
"""What other commands leave in a repro folder, and a bundle takes along."""

_MAX_MANIFEST_BYTES: Final = 1 << 20
_HEADER_END: Final = "What follows is the README of the folder it unpacks to.\n\n"
_HEADER: Final = """\
Replay this bundle as it is, with the base install of tapml and a driver for {platform}:

  tapml replay {archive}

"""


def is_bundle(path: Path) -> bool:
    """Whether `path` is meant as a bundle: a file, or nothing that is called like one."""
    return path.is_file() or (not path.is_dir() and path.name.endswith(EXTENSION))


def write_bundle(archive: Path, folder: Path, *, synthetic: bool = False) -> Path:
    """Write a repro folder as one file.

    Only what belongs to a repro folder goes in; edited kernels go in as they are.

    Parameters
    ----------
    archive
        Where, ``<name>.tapml.zip``.
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
        If `folder` is no repro folder, is damaged, or is too large.
    SetupError
        If the file cannot be written.
    """
    repro = read_repro(folder)
    name = repro.operator.name
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "operator": name,
        "test": repro.case.id,
        "status": repro.status,
        "device": repro.device["name"],
        "synthetic": synthetic,
        "edited_kernels": list(repro.edited),
    }
    header = _HEADER.format(platform=repro.device["platform"], archive=archive.name)
    # A bundle that was unpacked has another's header.
    page = (folder / README).read_text().rpartition(_HEADER_END)[-1]
    contents: dict[str, Path | bytes] = {each: folder / each for each in _members(folder)}
    contents |= {
        README: f"{header}{_HEADER_END}{page}".encode(),
        SCRIPT: SCRIPT_TEXT.encode(),
        MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode(),
        LAUNCH_PLAN: describe_launches(repro.library, shape_symbols(repro)).encode(),
    }
    write_archive(archive, {f"{name}/{each}": content for each, content in contents.items()})
    return archive


def _members(folder: Path) -> Iterator[str]:
    """The files of a repro folder, as its description names them."""
    description = json.loads((folder / DESCRIPTION).read_bytes())
    yield from (DESCRIPTION, LIBRARY, ERRORS)
    for optional in (OPERATOR, DIAGNOSIS, INDEPENDENT, *DOCUMENTS):
        if (folder / optional).is_file():
            yield optional
    for kind in TENSORS:
        yield from (f"{kind}/{file}" for file in description["files"][kind])
    yield from (f"{KERNELS}/{file}" for file in description["kernels"] if file is not None)


def shape_symbols(repro: Repro) -> dict[str, int]:
    """Values of the shape symbols in a repro folder's test, as its Library names them."""
    symbols = dict(repro.case.symbols)
    program = repro.library.operators.get(repro.operator.name)
    for declared, tested in zip(
        program.parameters if program else (), repro.operator.parameters, strict=False
    ):
        shape = [extent for extent in tested.shape if isinstance(extent, int)]
        bind_shape(declared.shape, shape, symbols, f"parameter {tested.name}")
    return symbols


def read_bundle(path: Path) -> Repro:
    """Read and check a bundle; it is unpacked to a temporary folder and leaves nothing behind.

    Raises
    ------
    InputError
        If there is none, it is damaged, of another version, or not what a bundle may be.
    """
    with tempfile.TemporaryDirectory(prefix="tapml-bundle-") as temporary:
        return read_repro(unpack_bundle(path, Path(temporary)))


def unpack_bundle(path: Path, folder: Path) -> Path:
    """Unpack a bundle into an empty folder, and return the repro folder in it.

    Raises
    ------
    InputError
        If there is none, it is damaged, of another version, or not what a bundle may be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    extract_archive(path, folder)
    folders = list(folder.iterdir())
    if len(folders) != 1 or not folders[0].is_dir():
        raise InputError(f"{path} is no bundle: expected one folder in it, got {len(folders)}")
    _check_manifest(path, folders[0] / MANIFEST)
    return folders[0]


def _check_manifest(path: Path, manifest: Path) -> None:
    try:
        if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            raise InputError(f"{path} is no bundle: its {MANIFEST} is too large")
        data = json.loads(manifest.read_bytes())
        found = data["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no bundle: {MANIFEST}: {error!r}") from error
    if found != FORMAT:
        raise InputError(
            f"{path} has the format {str(found)[:40]!r}, this tapml reads {FORMAT!r}: bundle it "
            "again, or install the tapml it was written with"
        )
