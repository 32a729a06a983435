"""The manifests by which the Vulkan loader finds drivers, those of browsers included.

SwiftShader, the software renderer that comes with Chromium, is a Vulkan driver like any other once
the loader knows its place: a second implementation to run the same kernels on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

CHOSEN_VARIABLES: Final = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
OWN_VARIABLE: Final = "TAPML_VK_DRIVER_FILES"
"""Says again what tapml has set the first to, for processes that are started with both."""
ADDED_VARIABLE: Final = "VK_ADD_DRIVER_FILES"
DRIVER_VARIABLES: Final = ("VK_", "MESA_", "LP_", "WGPU_", "CUDA_VISIBLE", "DRI_PRIME")
"""How the variables begin that loaders and drivers look at."""
_MANIFEST: Final = "vk_swiftshader_icd.json"
# Where packages put the browser with the driver beside it.
_BROWSERS: Final = (
    "/usr/lib/chromium",
    "/usr/lib64/chromium-browser",
    "/usr/lib/chromium-browser",
    "/opt/google/chrome",
    "/opt/chromium.org/chromium",
)
_PLAYWRIGHT: Final = "ms-playwright/chromium*/chrome-linux*"
_MAX_MANIFEST: Final = 64 << 10


def chosen_drivers(environ: Mapping[str, str]) -> bool:
    """Whether a user has chosen the drivers."""
    first, second = (environ.get(name, "") for name in CHOSEN_VARIABLES)
    return bool(second) or first not in ("", environ.get(OWN_VARIABLE))


def system_manifests(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The manifests in the loader's own folders, each file name once, sorted by folder and name."""
    home = environ.get("HOME", "")
    data = environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    roots = [
        environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else ""),
        *(environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"),
        "/usr/local/etc",
        "/etc",
        environ.get("XDG_DATA_HOME") or (f"{home}/.local/share" if home else ""),
        *data.split(":"),
    ]
    found: dict[str, Path] = {}
    for root in filter(None, roots):
        folder = Path(root) / "vulkan" / "icd.d"
        try:
            files = sorted(folder.glob("*.json"))
        except OSError:
            continue
        for file in files:
            found.setdefault(str(file), file)
    return list(found.values())


def browser_manifests(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """SwiftShader's manifest in the first installed browser that brings it; none is no fault."""
    for folder in _browser_folders(environ):
        manifest = folder / _MANIFEST
        if manifest.is_file() and library_of(manifest) is not None:
            return [manifest]
    return []


def browser_file(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """A file of the first installed browser that brings it."""
    files = (folder / name for folder in _browser_folders(environ))
    return next((file for file in files if file.is_file()), None)


def _browser_folders(environ: Mapping[str, str]) -> list[Path]:
    folders = [Path(folder) for folder in _BROWSERS]
    cache_home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "/")) / ".cache")
    with suppress(OSError):
        folders += sorted(Path(cache_home).glob(_PLAYWRIGHT), reverse=True)
    return folders


def library_of(manifest: Path) -> Path | None:
    """The driver that a manifest names; None where it names none or one found by name alone."""
    try:
        if manifest.stat().st_size > _MAX_MANIFEST:
            return None
        name = json.loads(manifest.read_bytes())["ICD"]["library_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(name, str) or "/" not in name:
        return None
    path = manifest.parent / name
    return path if path.is_file() else None


def is_broken(manifest: Path) -> bool:
    """Whether a manifest is no JSON, for which the loader has no driver at all."""
    try:
        text = manifest.read_bytes()
        if text:
            json.loads(text)
    except (OSError, ValueError) as error:
        return isinstance(error, ValueError)
    return False


@cache
def content_hash(path: Path) -> str:
    """The first digits of a file's SHA-256: the version of a driver that tells none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:
        return "unreadable"


def swiftshader_version() -> str:
    """The version of a browser's SwiftShader, which states none; empty where there is none."""
    libraries = [library_of(manifest) for manifest in browser_manifests()]
    # Each browser has its own.
    return f"SwiftShader {content_hash(libraries[0])}" if libraries and libraries[0] else ""
