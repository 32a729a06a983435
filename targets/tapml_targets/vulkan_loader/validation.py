"""The Khronos validation layer: where it is, the environment of its process, and what it says.

The layer stands between the Vulkan loader and a driver, so it checks whatever runs through Vulkan,
wgpu included. It rewrites every shader to report accesses outside of the bound buffers and races in
shared memory, and follows commands for hazards between them. It does not see values that nobody
wrote, divergent barriers, or races in global memory within one dispatch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tapml_targets.errors import SetupError
from tapml_targets.vulkan_loader.manifests import browser_file
from tapml_targets.vulkan_loader.validation_log import is_silenced, read_messages

__all__ = [
    "LAYER",
    "MAX_MESSAGES",
    "NAME",
    "ON_DEVICES",
    "UNOPTIMISED",
    "VARIABLE",
    "environment",
    "find_checker",
    "is_checking",
    "is_silenced",
    "kind_of_device",
    "read_messages",
]

NAME: Final = "the Khronos validation layer"
ON_DEVICES: Final = True
"""It runs kernels on the devices themselves."""
UNOPTIMISED: Final = ""
MAX_MESSAGES: Final = 4000
VARIABLE: Final = "TAPML_VALIDATION_LAYER"
"""Path of the layer's library if it is in none of the known places."""
CHECKING_VARIABLE: Final = "TAPML_VULKAN_CHECK"
"""Set in a process whose devices check."""
LAYER: Final = "VK_LAYER_KHRONOS_validation"

_LIBRARY: Final = "libVkLayer_khronos_validation.so"
_PLACES: Final = ("lib/*-linux-gnu", "lib64", "lib", "local/lib")
# A setting of the layer's later versions, and the last that this needs: races in shared memory.
_NEEDED: Final = b"gpuav_shared_memory_data_race"
_SETTINGS: Final = {
    "VK_LAYER_GPUAV_ENABLE": "1",
    "VK_LAYER_GPUAV_SHARED_MEMORY_DATA_RACE": "1",
    "VK_LAYER_VALIDATE_SYNC": "1",
    # Else storage buffers, which are all that kernels have, are not followed.
    "VK_LAYER_SYNCVAL_SHADER_ACCESSES_HEURISTIC": "1",
    "VK_LAYER_DEBUG_ACTION": "VK_DBG_LAYER_ACTION_LOG_MSG",
    "VK_LAYER_MESSAGE_FORMAT_JSON": "1",
    # Else it reports the same message ten times and then never again.
    "VK_LAYER_ENABLE_MESSAGE_LIMIT": "0",
}


def is_checking(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs kernels under the layer, to check them."""
    return bool(environ.get(CHECKING_VARIABLE))


def kind_of_device(kind: str) -> str:
    """The type of a device in this process: ``checker`` where the layer checks, else `kind`."""
    return "checker" if is_checking() else kind


def find_checker() -> Path:
    """The layer's library: named by ``TAPML_VALIDATION_LAYER``, a browser's, or the system's.

    Raises
    ------
    SetupError
        If there is none, or only versions that find no races.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise SetupError(
                f"{VARIABLE} names {named}, which is no file; expected the path of {_LIBRARY}"
            )
        if not _is_recent(path):
            raise SetupError(
                f"{VARIABLE} names {named}, which is not {NAME} of 2025 or later: it has no "
                "setting gpuav_shared_memory_data_race"
            )
        return path.resolve()
    found = [path for path in (browser_file(_LIBRARY), *_from_system()) if path is not None]
    for path in found:
        if _is_recent(path):
            return path.resolve()
    old = f"; {found[0]} is too old: it finds no races" if found else ""
    raise SetupError(
        f"--check runs kernels under {NAME}, which is not installed{old}: install Debian's "
        f"chromium, which brings {_LIBRARY}, or name a later one in {VARIABLE}"
    )


def environment(library: Path, log: Path) -> dict[str, str]:
    """Environment of a process in which the layer checks and logs to `log`.

    The layer's manifest is written beside the log.
    """
    manifest = {
        "file_format_version": "1.2.0",
        "layer": {
            "name": LAYER,
            "type": "GLOBAL",
            "library_path": str(library),
            "api_version": "1.3.239",
            "implementation_version": "1",
            "description": NAME,
        },
    }
    (log.parent / "validation.json").write_text(json.dumps(manifest))
    return {
        **_SETTINGS,
        "VK_LAYER_PATH": str(log.parent),
        "VK_INSTANCE_LAYERS": LAYER,
        "VK_LAYER_LOG_FILENAME": str(log),
        CHECKING_VARIABLE: "1",
    }


def _from_system() -> list[Path]:
    """The layers of distributions' own packages: Debian's vulkan-validationlayers."""
    return [file for place in _PLACES for file in sorted(Path("/usr").glob(f"{place}/{_LIBRARY}"))]


@cache
def _is_recent(path: Path) -> bool:
    try:
        return _NEEDED in path.read_bytes()
    except OSError:
        return False
