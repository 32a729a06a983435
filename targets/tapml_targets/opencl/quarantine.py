"""Drivers that hang or crash when they are asked for their devices, and are left out for a day.

A driver may crash over a variable that is meant for it, so with others it is another case.
"""

from __future__ import annotations

from collections.abc import Mapping

from tapml_targets import probe_cache
from tapml_targets.opencl.vendors import (
    DRIVER_VARIABLES,
    SYSTEM_VENDORS,
    VENDORS_VARIABLE,
    library_path,
    stamp,
)

_KIND = "quarantine"


def reason(name: str, data: bytes, environ: Mapping[str, str]) -> str:
    """Why the driver behind an `.icd` file is left out; empty where it is not."""
    known = probe_cache.load(_KIND, name, _state(data, environ))
    return str(known.get("reason", "")) if known else ""


def add(name: str, data: bytes, environ: Mapping[str, str], why: str) -> None:
    """Leave a driver out until it or what is meant for it changes, or a day has passed."""
    probe_cache.store(_KIND, name, _state(data, environ), {"reason": why})


def lift(name: str, data: bytes, environ: Mapping[str, str]) -> None:
    """Let a driver in again."""
    probe_cache.forget(_KIND, name, _state(data, environ))


def _state(data: bytes, environ: Mapping[str, str]) -> list[str]:
    library = data.decode(errors="replace").strip()
    settings = [
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if name.startswith(DRIVER_VARIABLES) and name != VENDORS_VARIABLE
    ]
    return [library, stamp(library_path(library, SYSTEM_VENDORS)).decode(), *settings]
