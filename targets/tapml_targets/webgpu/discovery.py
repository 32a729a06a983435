"""Which adapters there are, settled before wgpu loads the Vulkan loader.

Which Vulkan drivers there are is settled in :mod:`tapml_targets.vulkan_loader.drivers`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint
from tapml_targets.vulkan_loader.drivers import (
    chosen_by,
    forget_faulty_drivers,
    left_out,
    prepare_environment,
    prepare_this_process,
    set_faulty_drivers_aside,
    state_of,
)
from tapml_targets.vulkan_loader.validation import is_checking
from tapml_targets.webgpu.failures import error_log

__all__ = [
    "chosen_by",
    "drivers_state",
    "forget_faulty_drivers",
    "import_wgpu",
    "is_swiftshader",
    "left_out",
    "list_adapters",
    "preload",
    "prepare_environment",
    "set_faulty_drivers_aside",
]

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
    # Also if wgpu was imported before: the loader reads this at the first request for adapters.
    prepare_this_process()
    if os.environ.get("RUST_BACKTRACE") != "full":
        # A fault inside a submission ends the process: its report is what was printed last.
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


def preload() -> None:
    """Import wgpu, whose library starts threads only with an instance."""
    import_wgpu()


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
        # Names and lines reach the layer that checks only if asked for.
        flags = ("Debug",) if is_checking() else ("Default",)
        extras.set_instance_extras(backends=_BACKENDS, flags=flags)
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


def drivers_state() -> str:
    """A hash of the installed drivers and of what selects them, taken without loading any."""
    return state_of("wgpu")
