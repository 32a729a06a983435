"""Where OpenCL drivers come from, settled before pyopencl loads its driver loader.

The loader reads a folder of ``.icd`` files, each naming one driver's library. System packages put
theirs into ``/etc/OpenCL/vendors``. The CPU runtime from PyPI (``tapml[opencl-cpu]``) installs into
the Python environment with an ``.icd`` that names a path of Intel's build machine, so tapml writes
a folder of its own with the right path next to the system's files and points the loader there.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint, package_version
from tapml_targets.opencl import quarantine
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
    stamp,
    vendor_folder,
)


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
            f"the opencl platform needs pyopencl ({error}): {install_hint('opencl')}, "
            "or with opencl-cpu where there is no OpenCL driver"
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
    if chosen_vendors(environ):
        return result
    for name in (VENDORS_VARIABLE, OWN_VARIABLE):
        result.pop(name, None)
    contents = icd_files()
    # A process that is given more variables than this one has the same drivers.
    aside = left_out()
    sound = {name: data for name, data in contents.items() if name not in aside}
    if sound.keys() == contents.keys() and intel_driver() is None:
        return result
    # Intel's driver finds what it needs by its own run path; the environment's `lib` must not go
    # on LD_LIBRARY_PATH, where it would reach every other program.
    result[VENDORS_VARIABLE] = result[OWN_VARIABLE] = str(vendor_folder(sound))
    return result


def left_out(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Name of each `.icd` file whose driver is left out, and what it did when it was asked."""
    if chosen_vendors(environ):
        return {}
    reasons = {name: quarantine.reason(name, data, environ) for name, data in icd_files().items()}
    return {name: why for name, why in reasons.items() if why}


def set_faulty_drivers_aside(ask: Callable[[Mapping[str, str]], str]) -> dict[str, str]:
    """Find the drivers that hang or crash when asked for their devices, and do without them.

    Parameters
    ----------
    ask
        Lists the devices in a child process with the given environment; returns what went wrong,
        or nothing.

    Returns
    -------
    dict
        Name of each faulty driver's `.icd` file and what it did.
    """
    if chosen_vendors(os.environ):
        # The user has chosen these drivers.
        return {}
    faulty = {}
    known = left_out()
    for name, data in icd_files().items():
        if name in known:
            continue
        alone = dict(os.environ) | {VENDORS_VARIABLE: str(vendor_folder({name: data}))}
        problem = ask(alone)
        if problem:
            quarantine.add(name, data, os.environ, problem)
            faulty[name] = problem
    return faulty


def forget_faulty_drivers() -> None:
    """Let every driver in again: the next look finds out which ones are faulty."""
    for name, data in icd_files().items():
        quarantine.lift(name, data, os.environ)


def drivers_state() -> str:
    """A hash of the installed drivers and of what selects them, taken without loading any."""
    environ = prepare_environment(os.environ)
    digest = hashlib.sha256(sys.prefix.encode())
    for name in sorted(environ):
        if name.startswith(DRIVER_VARIABLES):
            digest.update(f"{name}={environ[name]}\0".encode())
    digest.update((package_version("pyopencl") or "no pyopencl").encode())
    chosen = environ.get(VENDORS_VARIABLE)
    places = [Path(chosen)] if chosen else [SYSTEM_VENDORS]
    places += bundled_vendors()
    for place in places:
        files = sorted(place.glob("*.icd")) if place.is_dir() else [place]
        for file in files:
            digest.update(stamp(file))
            try:
                library = file.read_text(errors="replace").strip()
            except OSError:
                continue
            digest.update(stamp(library_path(library, file.parent)))
    return digest.hexdigest()
