"""Where OpenCL drivers come from, settled before pyopencl loads its driver loader.

The loader reads a folder of ``.icd`` files, each naming one driver's library. System packages put
theirs into ``/etc/OpenCL/vendors``. The CPU runtime from PyPI (``tapml[opencl-cpu]``) installs into
the Python environment with an ``.icd`` that names a path of Intel's build machine, so tapml writes
a folder of its own with the right path next to the system's files and points the loader there.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tapml_targets.cache_folder import cache_folder
from tapml_targets.errors import SetupError

VENDORS_VARIABLE: Final = "OCL_ICD_VENDORS"
SYSTEM_VENDORS: Final = Path("/etc/OpenCL/vendors")
_DRIVER_VARIABLES: Final = ("OCL_", "OPENCL_", "POCL_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_")
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
_INTEL_DISTRIBUTION: Final = "intel-opencl-rt"
_INTEL_DRIVER: Final = "libintelocl.so"


def import_pyopencl() -> Any:
    """Import pyopencl, with this environment's drivers in the loader's sight.

    Raises
    ------
    SetupError
        If pyopencl is not installed or does not load.
    """
    module = sys.modules.get("pyopencl")
    if module is not None:
        return module
    os.environ.update(prepare_environment(os.environ))
    try:
        return importlib.import_module("pyopencl")
    except ModuleNotFoundError as error:
        raise SetupError(
            f"the opencl platform needs pyopencl ({error}); install it with: "
            'pip install "tapml[opencl]", or "tapml[opencl-cpu]" where there is no OpenCL driver'
        ) from None
    except ImportError as error:
        raise SetupError(
            f"pyopencl is installed but does not load: {error}; "
            "reinstall it with: pip install --force-reinstall pyopencl"
        ) from None


def prepare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that uses OpenCL: `environ` with the drivers' places.

    A folder the user has chosen with ``OCL_ICD_VENDORS`` stays as it is.
    """
    result = dict(environ)
    if environ.get(VENDORS_VARIABLE):
        return result
    driver = intel_driver()
    if driver is None:
        return result
    # The driver finds what it needs by its own run path; the environment's `lib` must not go on
    # LD_LIBRARY_PATH, where it would reach every other program.
    result[VENDORS_VARIABLE] = str(_vendor_folder(driver))
    return result


def drivers_state() -> str:
    """A hash of the installed drivers and of what selects them, taken without loading any."""
    environ = prepare_environment(os.environ)
    digest = hashlib.sha256(sys.prefix.encode())
    for name in sorted(environ):
        if name.startswith(_DRIVER_VARIABLES):
            digest.update(f"{name}={environ[name]}\0".encode())
    try:
        digest.update(importlib.metadata.version("pyopencl").encode())
    except importlib.metadata.PackageNotFoundError:
        digest.update(b"no pyopencl")
    chosen = environ.get(VENDORS_VARIABLE)
    places = [Path(chosen)] if chosen else [SYSTEM_VENDORS]
    places += _bundled_vendors()
    for place in places:
        files = sorted(place.glob("*.icd")) if place.is_dir() else [place]
        for file in files:
            digest.update(_stamp(file))
            try:
                library = file.read_text(errors="replace").strip()
            except OSError:
                continue
            digest.update(_stamp(_library_path(library, file.parent)))
    return digest.hexdigest()


def intel_driver() -> Path | None:
    """Intel's OpenCL CPU runtime in this Python environment, None where it is not installed."""
    try:
        files = importlib.metadata.files(_INTEL_DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == _INTEL_DRIVER:
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    return None


def _vendor_folder(driver: Path) -> Path:
    """A folder with the `.icd` files of the system and one for `driver`, named by its content."""
    contents = _system_icds()
    contents["tapml-intel-cpu.icd"] = f"{driver.parent / _INTEL_DRIVER}\n".encode()
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
                # Another process was first; its content is the same by name.
                shutil.rmtree(staged, ignore_errors=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="tapml-opencl-vendors-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _write_all(folder, contents)
    return folder


def _bundled_vendors() -> list[Path]:
    """The folder where driver wheels for pyopencl's own loader put their `.icd` files."""
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / ".libs"
    return [folder] if folder.is_dir() else []


def _library_path(name: str, folder: Path) -> Path:
    if "/" in name:
        return Path(name)
    for place in (folder, *_LIBRARY_FOLDERS):
        found = list(place.glob(name)) if place.is_dir() else []
        if found:
            return found[0].resolve()
    return Path(name)


def _stamp(path: Path) -> bytes:
    try:
        status = path.stat()
    except OSError:
        return f"{path}: missing\0".encode()
    return f"{path}: {status.st_size} {status.st_mtime_ns}\0".encode()


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
            # The wheel's own files beside the system's: they name a path that does not exist.
            if not data.startswith(b"/opt/anaconda1anaconda2"):
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
