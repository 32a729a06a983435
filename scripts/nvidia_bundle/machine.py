"""What is on this machine: its GPU and driver, and the loaders that reach them.

A machine with the driver alone often has no Vulkan loader and no files that say where the driver's
Vulkan and OpenCL are. A carried loader and files written here take their place, for our own
processes; what is there comes first.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

VULKAN_LOADER: Final = "libvulkan.so.1"
_VULKAN_DRIVERS: Final = ("libGLX_nvidia.so.0", "libEGL_nvidia.so.0")
_OPENCL_DRIVER: Final = "libnvidia-opencl.so.1"
_MANIFEST_FOLDERS: Final = (
    "/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d",
    "/usr/local/etc/vulkan/icd.d", "/usr/local/nvidia/share/vulkan/icd.d",
)  # fmt: skip
# Where the Vulkan loader looks by itself.
_LOOKED_IN: Final = _MANIFEST_FOLDERS[:4]
_VENDORS: Final = Path("/etc/OpenCL/vendors")
_LIBRARY_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib64",
)  # fmt: skip
_ASKED_SECONDS: Final = 20


def facts() -> dict[str, Any]:
    """Date, Python, kernel, processor count, GPU and driver; what is not known is left out."""
    known: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
    }
    return known | _nvidia()


def _nvidia() -> dict[str, Any]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"nvidia": "nvidia-smi is not on the PATH"}
    asked = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        told = subprocess.run(
            asked, capture_output=True, text=True, check=False, timeout=_ASKED_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"nvidia": f"nvidia-smi does not answer: {error}"}
    first = [part.strip() for part in told.stdout.splitlines()[:1] for part in part.split(",")]
    if told.returncode or len(first) != 3:
        return {"nvidia": f"nvidia-smi says: {' '.join((told.stdout + told.stderr).split())}"}
    return {"gpu": first[0], "driver": first[1], "memory": first[2]}


def loads(library: str) -> bool:
    """Whether the dynamic loader finds a library, asked in a process of its own."""
    program = f"import ctypes; ctypes.CDLL({library!r})"
    asked = [sys.executable, "-c", program]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def environment(carried: Path, site: Path | None, made: Path) -> tuple[dict[str, str], list[str]]:
    """Variables of the environment that let our processes find Vulkan and OpenCL.

    Parameters
    ----------
    carried
        Folder of carried loaders; it may be absent.
    site
        Folder of carried packages. The bindings look for NVRTC beside the interpreter's own, and
        where the dynamic loader looks.
    made
        Folder in which files are written that say where a driver is.

    Returns
    -------
    variables, notes
        What is set, and a line about each.
    """
    variables: dict[str, str] = {}
    notes = []
    libraries = [] if site is None else sorted(site.glob("nvidia/*/lib"))
    made.mkdir(parents=True, exist_ok=True)
    if not loads(VULKAN_LOADER):
        loader = carried / VULKAN_LOADER
        if loader.is_file() and _opens(loader):
            libraries.append(carried)
            notes.append(f"Vulkan loader: the machine has none, {loader.name} is carried")
        else:
            notes.append(f"Vulkan loader: {VULKAN_LOADER} is absent here and in the bundle")
    if not _manifests(_LOOKED_IN) and not os.environ.get("VK_DRIVER_FILES"):
        found = _manifests(_MANIFEST_FOLDERS) or _written_manifest(made)
        if found:
            variables["VK_ADD_DRIVER_FILES"] = str(found[0])
            notes.append(f"Vulkan driver: named by {found[0]}")
    if libraries:
        before = os.environ.get("LD_LIBRARY_PATH")
        parts = [*([before] if before else []), *map(str, libraries)]
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(parts)
    if not any(_VENDORS.glob("*nvidia*.icd")) and not os.environ.get("OCL_ICD_VENDORS"):
        driver = next(_libraries(_OPENCL_DRIVER), None)
        if driver is not None:
            folder = made / "vendors"
            folder.mkdir(exist_ok=True)
            for each in _VENDORS.glob("*.icd"):
                shutil.copyfile(each, folder / each.name)
            (folder / "nvidia.icd").write_text(f"{driver}\n", "utf-8")
            variables["OCL_ICD_VENDORS"] = str(folder)
            notes.append(f"OpenCL driver: {driver}, which no file of the system names")
    return variables, notes


def _opens(library: Path) -> bool:
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


def _manifests(folders: Iterable[str]) -> list[Path]:
    return [path for each in folders for path in sorted(Path(each).glob("*nvidia*.json"))]


def _written_manifest(folder: Path) -> list[Path]:
    for name in _VULKAN_DRIVERS:
        for driver in _libraries(name):
            path = folder / "nvidia_icd.json"
            content = {
                "file_format_version": "1.0.0",
                "ICD": {"library_path": str(driver), "api_version": "1.3.277"},
            }
            path.write_text(json.dumps(content), "utf-8")
            return [path]
    return []


def _libraries(name: str) -> Iterator[Path]:
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_LIBRARY_FOLDERS]
    return (Path(each) / name for each in folders if each and (Path(each) / name).is_file())
