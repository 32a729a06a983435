"""A bundle is checked, unpacked, and its wheels installed into a folder of their own.

pip does it where it is there; a machine may have none, and a wheel is a zip archive.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

FORMAT: Final = "tapml-nvidia-bundle/1"
MANIFEST: Final = "manifest.json"
ARCHIVE: Final = "carried.tar.xz"
WHEELS: Final = "wheels"
_DONE: Final = "installed.json"
_BLOCK: Final = 1 << 20
_LARGEST_MANIFEST: Final = 1 << 20


class BundleError(Exception):
    """The bundle cannot be used; the message is one line."""


def read_manifest(bundle: Path) -> dict[str, Any]:
    """What the bundle says of itself, with every file's checksum compared.

    Raises
    ------
    BundleError
        If it is no bundle, a file is missing, or its content is another.
    """
    path = bundle / MANIFEST
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise ValueError("too large")
        manifest = json.loads(path.read_text("utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"expected {FORMAT}, got {manifest['format']}")
        files = dict(manifest["files"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{bundle} is no bundle ({error}): make one with `prepare`") from error
    for name, expected in files.items():
        try:
            found = checksum(bundle / name)
        except OSError as error:
            raise BundleError(f"{name} of the bundle cannot be read: {error.strerror}") from error
        if found != expected:
            raise BundleError(f"{name} of the bundle is damaged: copy the bundle again")
    return dict(manifest)


def checksum(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def unpacked(bundle: Path, manifest: dict[str, Any], folder: Path) -> Path:
    """The folder with the archive's content; what an earlier run unpacked is used again.

    Programs are run from there, so the folder has to be this user's alone.

    Raises
    ------
    BundleError
        If it cannot be written, others may write there, or the archive is of another kind.
    """
    target = folder / str(manifest["files"][ARCHIVE])[:16]
    partial = target.with_name(f"{target.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _require_own(folder)
        if os.path.lexists(target):
            _require_own(target)
            return target
        if os.path.lexists(partial):
            _require_own(partial)
            shutil.rmtree(partial)
        partial.mkdir(mode=0o700)
        with tarfile.open(bundle / ARCHIVE, "r:xz") as archive:
            _extract(archive, partial)
        partial.rename(target)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise BundleError(f"the bundle cannot be unpacked to {folder}: {error}") from error
    return target


def _require_own(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        problem = "is no folder"
    elif found.st_uid != os.getuid():
        problem = "is another user's"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "may be written by others"
    else:
        return
    raise BundleError(f"{folder} {problem}: name a folder of your own with --unpack")


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    # Python 3.11.0 to 3.11.3 has no filters. A bundle holds only files and folders by plain names.
    members = archive.getmembers()
    for each in members:
        path = PurePosixPath(each.name)
        if path.is_absolute() or ".." in path.parts or not (each.isfile() or each.isdir()):
            raise tarfile.TarError(f"{each.name} is no file or folder of a bundle")
        each.mode = 0o755 if each.isdir() else 0o644
    archive.extractall(folder, members)  # noqa: S202


def installed(carried: Path, say: Callable[[str], None], seconds: float) -> tuple[Path | None, str]:
    """The folder that holds the carried packages, and how they came there; None without wheels.

    Raises
    ------
    BundleError
        If they cannot be installed, or are for other versions of Python.
    """
    wheels = fitting(sorted((carried / WHEELS).glob("*.whl")), sys.version_info[:2])
    if not wheels:
        return None, "the bundle carries no wheels: the packages are this interpreter's"
    site = carried / f"site-{sys.version_info.major}.{sys.version_info.minor}"
    done = site / _DONE
    if done.is_file():
        return site, str(json.loads(done.read_text("utf-8"))["how"])
    say(f"installing {len(wheels)} carried wheels")
    how = _by_pip(wheels, site, seconds) or _by_unzipping(wheels, site)
    done.write_text(json.dumps({"how": how}), "utf-8")
    return site, how


def fitting(wheels: Sequence[Path], python: tuple[int, int]) -> list[Path]:
    """One wheel of each distribution, for this version of CPython.

    Raises
    ------
    BundleError
        If a distribution's wheels are all for others.
    """
    names = {each.name.partition("-")[0]: each for each in wheels if not _fits(each, python)}
    found = {each.name.partition("-")[0]: each for each in wheels if _fits(each, python)}
    missing = sorted(names.keys() - found.keys())
    if missing:
        ours = ".".join(map(str, python))
        tag = names[missing[0]].name.split("-")[-3]
        raise BundleError(
            f"the bundle has no wheel of {missing[0]} for Python {ours}, but for {tag}: start it "
            f"with that version, or prepare it with --python {ours}"
        )
    return list(found.values())


def _fits(wheel: Path, python: tuple[int, int]) -> bool:
    """By the tags of its name: ``cp312-cp312``, ``cp311-abi3``, ``py3-none``."""
    interpreters, interfaces = wheel.stem.split("-")[-3:-1]
    for tag in interpreters.split("."):
        version = tag[2:3], tag[3:] or "0"
        if not all(each.isdigit() for each in version):
            continue
        given = int(version[0]), int(version[1])
        is_exact = tag.startswith("cp") and "abi3" not in interfaces and "none" not in interfaces
        if given == python or (not is_exact and given[0] == python[0] and given <= python):
            return True
    return False


def _by_pip(wheels: list[Path], site: Path, seconds: float) -> str:
    asked = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
        "--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--upgrade",
        "--root-user-action", "ignore", "--find-links", str(wheels[0].parent),
        "--target", str(site), *map(str, wheels),
    ]  # fmt: skip
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if told.returncode == 0:
        return f"{len(wheels)} wheels, by pip"
    return ""


def _by_unzipping(wheels: list[Path], site: Path) -> str:
    try:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    # Of a wheel's other places only these two hold modules.
                    _, data, inside = name.partition(".data/")
                    kind, _, rest = inside.partition("/")
                    if data and kind not in ("purelib", "platlib"):
                        continue
                    target = (site / (rest if data else name)).resolve()
                    if not target.is_relative_to(site.resolve()) or name.endswith("/"):
                        continue
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
    except (OSError, zipfile.BadZipFile) as error:
        raise BundleError(f"the carried wheels cannot be unpacked: {error}") from error
    return f"{len(wheels)} wheels, unpacked without pip"
