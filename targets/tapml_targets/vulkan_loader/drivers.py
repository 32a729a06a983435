"""The Vulkan drivers that the loader is shown, and those that are left out.

The loader reads manifests, each naming one driver, from the system's folders. tapml adds the one
that ships with Chromium (:mod:`tapml_targets.vulkan_loader.manifests`), so that a machine with a
browser has a second implementation. Who sets ``VK_DRIVER_FILES`` or ``VK_ICD_FILENAMES`` has chosen
the drivers and gets exactly those.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tapml_targets.driver_discovery import use_environment
from tapml_targets.quarantine import Quarantine, stamp, state_of_drivers
from tapml_targets.vulkan_loader.manifests import (
    ADDED_VARIABLE,
    CHOSEN_VARIABLES,
    DRIVER_VARIABLES,
    OWN_VARIABLE,
    browser_manifests,
    chosen_drivers,
    is_broken,
    library_of,
    system_manifests,
)

# A layer of Mesa that talks to a window system and puts devices in another order.
_NO_SELECTION: Final = "NODEVICE_SELECT"
NO_JSON: Final = "its manifest is no JSON, and the Vulkan loader fails over it: correct it"


@cache
def prepare_this_process() -> None:
    """Show this process's loader the drivers, once: it looks when it is first asked for devices."""
    use_environment(prepare_environment(os.environ))


def prepare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that uses Vulkan: `environ` with the drivers' places.

    Drivers the user has chosen stay as they are. A variable of no text chooses none.
    """
    result = dict(environ)
    result.setdefault(_NO_SELECTION, "1")
    if chosen_drivers(environ):
        return result
    for name in (*CHOSEN_VARIABLES, OWN_VARIABLE):
        result.pop(name, None)
    added = _added(environ)
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

    A process that uses Vulkan has them added; a browser would take another's for this machine's.
    """
    own = {str(path) for path in browser_manifests()}
    added = (environ.get(ADDED_VARIABLE) or "").split(os.pathsep)
    kept = [path for path in added if path and path not in own]
    result = {name: value for name, value in environ.items() if name != ADDED_VARIABLE}
    return result | ({ADDED_VARIABLE: os.pathsep.join(kept)} if kept else {})


def _added(environ: Mapping[str, str]) -> list[str]:
    return [path for path in (environ.get(ADDED_VARIABLE) or "").split(os.pathsep) if path]


def _manifests() -> list[Path]:
    added = map(Path, _added(os.environ))
    return list(dict.fromkeys((*system_manifests(), *browser_manifests(), *added)))


_QUARANTINE: Final = Quarantine(
    "vulkan-quarantine",
    DRIVER_VARIABLES,
    (*CHOSEN_VARIABLES, ADDED_VARIABLE),
    chosen_drivers,
    lambda: {str(each): [stamp(each), stamp(library_of(each))] for each in _manifests()},
    lambda manifest: {CHOSEN_VARIABLES[0]: manifest},
)
chosen_by = _QUARANTINE.chosen_by
set_faulty_drivers_aside = _QUARANTINE.set_faulty_drivers_aside
forget_faulty_drivers = _QUARANTINE.forget_faulty_drivers


def left_out(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The drivers that are left out, by their manifests, with what each did."""
    broken = [] if chosen_drivers(environ) else filter(is_broken, _manifests())
    return {str(each): NO_JSON for each in broken} | _QUARANTINE.left_out(environ)


def broken_choices() -> list[str]:
    """The manifests that the user has chosen and that are no JSON."""
    named = (
        path for name in CHOSEN_VARIABLES for path in os.environ.get(name, "").split(os.pathsep)
    )
    return [path for path in named if path and is_broken(Path(path))]


def state_of(package: str) -> str:
    """A hash of the installed drivers and of what selects them, taken without loading any.

    `package` is the distribution through which the platform loads them.
    """
    files = (file for each in _manifests() for file in (each, library_of(each)))
    return state_of_drivers(prepare_environment(os.environ), DRIVER_VARIABLES, package, files)
