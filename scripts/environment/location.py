"""Where the environment lies: in the project, or in the user's cache if that is read-only."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scripts.environment.record import RECORD_NAME

ROOT = Path(__file__).resolve().parent.parent.parent


def is_writable(folder: Path) -> bool:
    """Whether a file can be made in `folder`: asked by making one, since root passes any mode."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def is_ours(folder: Path) -> bool:
    """Whether the set-up may replace `folder`: it made it, or there is nothing in it.

    The record's temporary file counts as nothing: another set-up may be writing it right now.
    """
    if not folder.exists() or (folder / RECORD_NAME).is_file():
        return True
    return folder.is_dir() and all(entry.name.startswith(RECORD_NAME) for entry in folder.iterdir())


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's cache folder for this project; it may not exist yet."""
    if chosen := environ.get("TAPML_CACHE_DIR"):
        return Path(chosen)
    base = environ.get("XDG_CACHE_HOME") or Path(
        environ.get("HOME", tempfile.gettempdir()), ".cache"
    )
    return Path(base, "tapml")


def environment_folder(root: Path, environ: Mapping[str, str]) -> Path:
    """Choose the environment's folder.

    ``TAPML_VENV`` decides where it is set. Else it is ``.venv`` in the project, ``.venv-tapml`` if
    somebody else's environment has that name, or a folder in the cache for a read-only project.
    """
    if chosen := environ.get("TAPML_VENV"):
        return Path(chosen).expanduser().absolute()
    for name in (".venv", ".venv-tapml"):
        folder = root / name
        if (folder / RECORD_NAME).is_file():
            return folder
        if is_ours(folder) and is_writable(root):
            return folder
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    return cache_folder(environ) / f"venv-{digest}"
