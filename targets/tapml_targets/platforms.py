"""The platforms that exist: one folder each, with the same file names inside."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from types import ModuleType

from tapml_targets.errors import InputError


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
        If it is not; the known platforms are listed.
    """
    if name not in platform_names():
        hint = "; an address begins with tcp://, ws:// or wss://" * (name in ("tcp", "ws", "wss"))
        known = ", ".join(platform_names())
        raise InputError(f"unknown target {name!r}; known targets: {known}{hint}")
    return name


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
