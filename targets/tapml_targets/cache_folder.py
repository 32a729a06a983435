"""The folder of this user's caches, and atomic writes into it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from tapml_targets.failpoints import failpoint

_ABANDONED_SECONDS: Final = 3600.0
"""No cache write takes this long, so an older temporary file is from a killed process."""


def cache_folder(*parts: str, environ: Mapping[str, str] = os.environ) -> Path:
    """A folder below the user's cache, made for this user alone.

    ``TAPML_CACHE_DIR`` moves it; otherwise it is ``tapml`` in the platform's usual place.

    Raises
    ------
    OSError
        If it cannot be made; callers continue without a cache.
    """
    if chosen := environ.get("TAPML_CACHE_DIR"):
        base = Path(chosen)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches" / "tapml"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tapml"
    folder = base.joinpath(*parts)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write_atomically(path: Path, data: bytes) -> None:
    """Give `path` the content `data`; a reader sees the old file or the new one.

    Nothing is synced: a cache checks what it reads, and recreates what a power failure destroyed.
    """
    _remove_abandoned(path.parent)
    with failpoint("write", path):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        with failpoint("rename", path):
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@cache
def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files of killed processes, once per process and folder."""
    latest = time.time() - _ABANDONED_SECONDS
    with suppress(OSError):
        for path in folder.glob(".*"):
            if path.stat().st_mtime < latest:
                path.unlink()
