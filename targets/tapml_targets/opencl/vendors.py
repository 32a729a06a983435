"""The `.icd` files by which the OpenCL loader finds drivers, and folders made of them."""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tapml_targets.cache_folder import cache_folder

SYSTEM_VENDORS: Final = Path("/etc/OpenCL/vendors")
VENDORS_VARIABLE: Final = "OCL_ICD_VENDORS"
OWN_VARIABLE: Final = "TAPML_ICD_VENDORS"
"""A copy of tapml's own setting, so that child processes can tell it from a user's."""
DRIVER_VARIABLES: Final = ("OCL_", "OPENCL_", "POCL_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_")
"""Prefixes of the variables that loaders and drivers read."""
_INTEL_DISTRIBUTION: Final = "intel-opencl-rt"
_INTEL_DRIVER: Final = "libintelocl.so"
# A path of Intel's build machine, in the `.icd` files that come with the wheel.
_WRONG_PATH: Final = b"/opt/anaconda1anaconda2"
_LIBRARY_FOLDERS: Final = tuple(
    Path(folder)
    for folder in (
        f"/usr/lib/{os.uname().machine}-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
        "/opt/rocm/lib",
    )
)


def chosen_vendors(environ: Mapping[str, str]) -> str:
    """The folder that the user has chosen, or an empty string."""
    folder = environ.get(VENDORS_VARIABLE, "")
    return "" if folder == environ.get(OWN_VARIABLE) else folder


def icd_files() -> dict[str, bytes]:
    """Name and content of each driver's `.icd` file, those of the Python environment included."""
    contents = _system_icds()
    driver = intel_driver()
    if driver is not None:
        contents["tapml-intel-cpu.icd"] = f"{driver}\n".encode()
    return contents


def intel_driver() -> Path | None:
    """Intel's OpenCL CPU runtime in this Python environment, or None."""
    try:
        files = importlib.metadata.files(_INTEL_DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == _INTEL_DRIVER:
            path = Path(str(file.locate())).parent.resolve() / _INTEL_DRIVER
            if path.is_file():
                return path
    return None


def vendor_folder(contents: Mapping[str, bytes]) -> Path:
    """A folder with exactly these `.icd` files, named by its content and reused."""
    digest = hashlib.sha256()
    for name, data in sorted(contents.items()):
        digest.update(name.encode() + b"\0" + data + b"\0")
    name = digest.hexdigest()[:16]
    try:
        parent = cache_folder("opencl-vendors")
        folder = parent / name
        if not _holds(folder, contents):
            staged = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}."))
            _write_all(staged, contents)
            shutil.rmtree(folder, ignore_errors=True)
            try:
                staged.rename(folder)
            except OSError:
                # Another process was first; the same name means the same content.
                shutil.rmtree(staged, ignore_errors=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="tapml-opencl-vendors-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _write_all(folder, contents)
    return folder


def bundled_vendors() -> list[Path]:
    """The folder where driver wheels for pyopencl's own loader put their `.icd` files."""
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / ".libs"
    return [folder] if folder.is_dir() else []


def library_path(name: str, folder: Path) -> Path:
    """The file that an `.icd` file in `folder` means by `name`."""
    if "/" in name:
        return Path(name)
    for place in (folder, *_LIBRARY_FOLDERS):
        found = list(place.glob(name)) if place.is_dir() else []
        if found:
            return found[0].resolve()
    return Path(name)


def _system_icds() -> dict[str, bytes]:
    folders = [SYSTEM_VENDORS]
    if conda := os.environ.get("CONDA_PREFIX"):
        folders.append(Path(conda) / "etc" / "OpenCL" / "vendors")
    contents: dict[str, bytes] = {}
    for folder in folders:
        try:
            files = sorted(folder.glob("*.icd"))
        except OSError:
            continue
        for file in files:
            try:
                data = file.read_bytes()
            except OSError:
                continue
            if not data.startswith(_WRONG_PATH):
                contents.setdefault(file.name, data)
    return contents


def _holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    try:
        found = {file.name: file.read_bytes() for file in folder.iterdir()}
    except OSError:
        return False
    return found == dict(contents)


def _write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, data in contents.items():
        (folder / name).write_bytes(data)
