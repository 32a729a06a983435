"""Which adapters there are, settled before wgpu loads the Vulkan loader.

The loader reads manifests, each naming one driver, from the system's folders. tapml adds the one
that ships with Chromium (:mod:`tapml_targets.webgpu.vendors`), so that a machine with a browser has
a second implementation. Who sets ``VK_DRIVER_FILES`` or ``VK_ICD_FILENAMES`` has chosen the drivers
and gets exactly those.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint, package_version
from tapml_targets.webgpu import quarantine
from tapml_targets.webgpu.failures import error_log
from tapml_targets.webgpu.vendors import (
    ADDED_VARIABLE,
    CHOSEN_VARIABLES,
    DRIVER_VARIABLES,
    OWN_VARIABLE,
    browser_manifests,
    chosen_drivers,
    library_of,
    stamp,
    system_manifests,
)

# A layer of Mesa that talks to a window system and puts devices in another order.
_NO_SELECTION: Final = "NODEVICE_SELECT"
# Vulkan, Metal and Direct3D 12; OpenGL lists the same devices again, with less that works.
_BACKENDS: Final = ("Primary",)
_OPENGL: Final = ("OpenGL", "OpenGLES", "GL")


def import_wgpu() -> Any:
    """Import wgpu, with this machine's drivers in the Vulkan loader's sight.

    Raises
    ------
    SetupError
        If wgpu is not installed or does not load.
    """
    _prepare_this_process()
    if os.environ.get("RUST_BACKTRACE") != "full":
        # A fault inside a submission ends the process: what is told of it is what was printed last.
        os.environ["RUST_BACKTRACE"] = "0"
    try:
        module = importlib.import_module("wgpu")
        importlib.import_module("wgpu.backends.wgpu_native")
        error_log()
        return module
    except ModuleNotFoundError as error:
        raise SetupError(
            f"the webgpu platform needs wgpu ({error}): {install_hint('webgpu')}"
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        raise SetupError(
            f"wgpu is installed but does not load: {error}; "
            "reinstall it with: pip install --force-reinstall wgpu"
        ) from None


@cache
def _prepare_this_process() -> None:
    # Whoever imported wgpu before: the loader reads this when adapters are first asked for.
    os.environ.update(prepare_environment(os.environ))


def list_adapters() -> list[Any]:
    """Every adapter that runs kernels: hardware, then software, SwiftShader last.

    Raises
    ------
    SetupError
        If wgpu is missing or its drivers cannot be listed.
    """
    wgpu = import_wgpu()
    extras = importlib.import_module("wgpu.backends.wgpu_native.extras")
    # Refused where this process has an instance already: then OpenGL is left out below.
    with suppress(RuntimeError):
        extras.set_instance_extras(backends=_BACKENDS)
    try:
        found = wgpu.gpu.enumerate_adapters_sync()
    except (RuntimeError, wgpu.GPUError) as error:
        raise SetupError(f"wgpu does not list its adapters: {error}") from None
    found = [each for each in found if each.info["backend_type"] not in _OPENGL]
    # Installing a browser leaves the others' places alone.
    found.sort(key=lambda each: (each.info["adapter_type"] == "CPU", is_swiftshader(each.info)))
    return list(found)


def is_swiftshader(info: Mapping[str, Any]) -> bool:
    """Whether an adapter is Chromium's software renderer."""
    return "swiftshader" in f"{info['vendor']} {info['device']}".lower()


def prepare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that uses wgpu: `environ` with the drivers' places.

    Drivers the user has chosen stay as they are.
    """
    result = dict(environ)
    result.setdefault(_NO_SELECTION, "1")
    if chosen_drivers(environ):
        return result
    for name in (CHOSEN_VARIABLES[0], OWN_VARIABLE):
        result.pop(name, None)
    added = [path for path in (environ.get(ADDED_VARIABLE) or "").split(os.pathsep) if path]
    added += [str(path) for path in browser_manifests() if str(path) not in added]
    everything = [*system_manifests(), *map(Path, added)]
    # A process that is given more variables than this one has the same drivers.
    aside = left_out()
    sound = [str(each) for each in everything if str(each) not in aside]
    if len(sound) < len(everything):
        result[CHOSEN_VARIABLES[0]] = result[OWN_VARIABLE] = os.pathsep.join(sound)
    elif added:
        result[ADDED_VARIABLE] = os.pathsep.join(added)
    return result


def browser_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a browser: `environ` without the drivers that are browsers' own.

    A process that uses wgpu has them added; a browser would take another's for this machine's.
    """
    own = {str(path) for path in browser_manifests()}
    added = (environ.get(ADDED_VARIABLE) or "").split(os.pathsep)
    kept = [path for path in added if path and path not in own]
    result = {name: value for name, value in environ.items() if name != ADDED_VARIABLE}
    return result | ({ADDED_VARIABLE: os.pathsep.join(kept)} if kept else {})


def left_out(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Path of each manifest whose driver is left out, and what it did when it was asked."""
    if chosen_drivers(environ):
        return {}
    reasons = {
        str(manifest): quarantine.reason(manifest, environ)
        for manifest in [*system_manifests(), *browser_manifests()]
    }
    return {manifest: why for manifest, why in reasons.items() if why}


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
        Path of each faulty driver's manifest and what it did.
    """
    if chosen_drivers(os.environ):
        # The user has chosen these drivers.
        return {}
    faulty = {}
    known = left_out()
    for manifest in [*system_manifests(), *browser_manifests()]:
        if str(manifest) in known:
            continue
        problem = ask(dict(os.environ) | {CHOSEN_VARIABLES[0]: str(manifest)})
        if problem:
            quarantine.add(manifest, os.environ, problem)
            faulty[str(manifest)] = problem
    return faulty


def forget_faulty_drivers() -> None:
    """Let every driver in again: the next look finds out which ones are faulty."""
    for manifest in [*system_manifests(), *browser_manifests()]:
        quarantine.lift(manifest, os.environ)


def drivers_state() -> str:
    """A hash of the installed drivers and of what selects them, taken without loading any."""
    environ = prepare_environment(os.environ)
    digest = hashlib.sha256(sys.prefix.encode())
    for name in sorted(environ):
        if name.startswith(DRIVER_VARIABLES):
            digest.update(f"{name}={environ[name]}\0".encode())
    digest.update((package_version("wgpu") or "no wgpu").encode())
    for manifest in [*system_manifests(), *browser_manifests()]:
        digest.update(stamp(manifest))
        digest.update(stamp(library_of(manifest)))
    return digest.hexdigest()
