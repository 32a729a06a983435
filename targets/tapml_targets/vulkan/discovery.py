"""The Vulkan drivers there are, settled before the Vulkan loader is loaded."""

from __future__ import annotations

import importlib
from typing import Any, Final

from tapml_targets.errors import SetupError
from tapml_targets.installed import install_hint
from tapml_targets.vulkan.glslang import missing_compiler
from tapml_targets.vulkan_loader.drivers import (
    chosen_by,
    forget_faulty_drivers,
    left_out,
    prepare_environment,
    prepare_this_process,
    set_faulty_drivers_aside,
    state_of,
)

__all__ = [
    "REMEDY",
    "chosen_by",
    "drivers_state",
    "forget_faulty_drivers",
    "import_vulkan",
    "left_out",
    "missing_compiler",
    "prepare_environment",
    "set_faulty_drivers_aside",
]

REMEDY: Final = (
    "install a Vulkan driver, e.g. Debian's mesa-vulkan-drivers, which has one for processors"
)


def import_vulkan() -> Any:
    """Import the package ``vulkan``, with this machine's drivers in the loader's sight.

    Raises
    ------
    SetupError
        If the package or the Vulkan loader is missing.
    """
    prepare_this_process()
    try:
        return importlib.import_module("vulkan")
    except ModuleNotFoundError as error:
        raise SetupError(
            f"the vulkan platform needs the package vulkan ({error}): {install_hint('vulkan')}"
        ) from None
    except OSError:
        raise SetupError(
            "this machine has no Vulkan loader: install it and a driver, e.g. Debian's libvulkan1 "
            "and mesa-vulkan-drivers"
        ) from None


def drivers_state() -> str:
    """A hash of the installed drivers and of what selects them, taken without loading any."""
    return state_of("vulkan")
