"""Selects OpenCL drivers before pyopencl loads its driver loader.

The loader reads a folder of ``.icd`` files, each naming one driver's library. System packages put
theirs into ``/etc/OpenCL/vendors``. The CPU runtime from PyPI (``tapml[opencl-cpu]``) installs into
the Python environment with an ``.icd`` that names a path of Intel's build machine, so tapml writes
a folder of its own with the right path next to the system's files and points the loader there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tapml_targets.driver_discovery import use_environment
from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint
from tapml_targets.opencl.vendors import (
    DRIVER_VARIABLES,
    OWN_VARIABLE,
    SYSTEM_VENDORS,
    VENDORS_VARIABLE,
    bundled_vendors,
    chosen_vendors,
    icd_files,
    intel_driver,
    library_path,
    vendor_folder,
)
from tapml_targets.quarantine import Quarantine, stamp, state_of_drivers

_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"


def import_pyopencl() -> Any:
    """Import pyopencl so that its loader finds this environment's drivers.

    Raises
    ------
    SetupError
        If pyopencl is not installed or does not load.
    """
    module = sys.modules.get("pyopencl")
    if module is not None:
        return module
    use_environment(prepare_environment(os.environ))
    try:
        return importlib.import_module("pyopencl")
    except ModuleNotFoundError as error:
        raise SetupError(
            f"the opencl platform needs pyopencl ({error}): {install_hint('opencl')}, "
            "or with opencl-cpu where there is no OpenCL driver"
        ) from None
    except ImportError as error:
        raise SetupError(
            f"pyopencl is installed but does not load: {error}; "
            "reinstall it with: pip install --force-reinstall pyopencl"
        ) from None


def preload() -> None:
    """Import pyopencl and numpy, whose linear algebra starts a thread for each processor."""
    threads = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    try:
        import_pyopencl()
    finally:
        del os.environ[_BLAS_THREADS]
        if threads is not None:
            os.environ[_BLAS_THREADS] = threads


def prepare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that uses OpenCL: `environ` with the drivers' paths.

    A folder that the user has chosen with ``OCL_ICD_VENDORS`` stays.
    """
    result = dict(environ)
    if chosen_vendors(environ):
        return result
    for name in (VENDORS_VARIABLE, OWN_VARIABLE):
        result.pop(name, None)
    contents = icd_files()
    # Judged by this process's variables: a child with more of them gets the same drivers.
    aside = left_out()
    sound = {name: data for name, data in contents.items() if name not in aside}
    if sound.keys() == contents.keys() and intel_driver() is None:
        return result
    # Intel's driver finds its libraries by its run path; the environment's `lib` must not be on
    # LD_LIBRARY_PATH, where it would affect every other program.
    result[VENDORS_VARIABLE] = result[OWN_VARIABLE] = str(vendor_folder(sound))
    return result


def _states() -> dict[str, list[str]]:
    """By the name of each `.icd` file, its driver's library and that file's stamp."""
    libraries = {name: data.decode(errors="replace").strip() for name, data in icd_files().items()}
    return {
        name: [library, stamp(library_path(library, SYSTEM_VENDORS))]
        for name, library in libraries.items()
    }


def _alone(name: str) -> dict[str, str]:
    return {VENDORS_VARIABLE: str(vendor_folder({name: icd_files()[name]}))}


_QUARANTINE: Final = Quarantine(
    "quarantine",
    DRIVER_VARIABLES,
    (VENDORS_VARIABLE,),
    lambda environ: bool(chosen_vendors(environ)),
    _states,
    _alone,
)
chosen_by = _QUARANTINE.chosen_by
left_out = _QUARANTINE.left_out
set_faulty_drivers_aside = _QUARANTINE.set_faulty_drivers_aside
forget_faulty_drivers = _QUARANTINE.forget_faulty_drivers


def drivers_state() -> str:
    """A hash of the installed drivers and of the variables that select them; loads no driver."""
    environ = prepare_environment(os.environ)
    chosen = environ.get(VENDORS_VARIABLE)
    places = [Path(chosen)] if chosen else [SYSTEM_VENDORS]
    places += bundled_vendors()
    files = []
    for place in places:
        for file in sorted(place.glob("*.icd")) if place.is_dir() else [place]:
            files.append(file)
            with suppress(OSError):
                library = file.read_text(errors="replace").strip()
                files.append(library_path(library, file.parent))
    return state_of_drivers(environ, DRIVER_VARIABLES, "pyopencl", files)
