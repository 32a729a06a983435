"""The platforms that exist: one folder each, with the same file names inside."""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

from tapml_targets.errors import InputError

_ADDRESS: Final = "an address begins with tcp://, ws:// or wss://"
_BROWSER: Final = (
    "a browser is a device: --device browser, browser:chromium or browser:firefox, and its target "
    "is webgpu"
)
# What users name in a platform's place, and how it is said where it is taken.
_NO_PLATFORMS: Final = MappingProxyType(
    {
        **dict.fromkeys(("tcp", "ws", "wss"), _ADDRESS),
        **dict.fromkeys(("browser", "chrome", "chromium", "firefox"), _BROWSER),
        "tracker": "a tracker's device is --device tracker:NAME, and its target is its platform",
    }
)


@cache
def platform_names() -> tuple[str, ...]:
    """Names of all platforms, sorted: the folders beside this file that hold a ``driver.py``."""
    here = Path(__file__).parent
    return tuple(
        sorted(
            module.name
            for module in pkgutil.iter_modules([str(here)])
            if module.ispkg and (here / module.name / "driver.py").exists()
        )
    )


def check_platform(name: str) -> str:
    """Return `name` if it is a platform.

    Raises
    ------
    InputError
        If it is not; the known platforms are listed, and what it may have been meant for.
    """
    if name not in platform_names():
        known = ", ".join(platform_names())
        raise InputError(f"unknown target {name!r}; known targets: {known}{_hint(name)}")
    return name


def _hint(name: str) -> str:
    """What was meant by something like it; empty where nothing is like it."""
    found = get_close_matches(name.lower(), (*platform_names(), *_NO_PLATFORMS), n=1, cutoff=0.7)
    if not found:
        return ""
    return f"; {_NO_PLATFORMS.get(found[0], f'did you mean {found[0]!r}?')}"


def function_kind(name: str) -> str:
    """Which form of an operator a platform compiles, ``cpu`` or ``gpu``.

    Raises
    ------
    InputError
        If there is no such platform.
    """
    platform = importlib.import_module(f"tapml_targets.{check_platform(name)}")
    return str(platform.FUNCTION_KIND)


def load_driver_module(name: str) -> ModuleType:
    """Import a platform's ``driver.py``.

    Raises
    ------
    InputError
        If there is no such platform.
    """
    return importlib.import_module(f"tapml_targets.{check_platform(name)}.driver")
