"""Drivers that hang or crash when they are asked for their devices, and are left out for a day.

A driver may crash over a variable that is meant for it, so with others it is another case.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tapml_targets import probe_cache
from tapml_targets.webgpu.vendors import (
    ADDED_VARIABLE,
    CHOSEN_VARIABLES,
    DRIVER_VARIABLES,
    library_of,
    stamp,
)

_KIND = "vulkan-quarantine"
# These say which drivers there are, and tapml sets them itself.
_PLACES = (*CHOSEN_VARIABLES, ADDED_VARIABLE)


def reason(manifest: Path, environ: Mapping[str, str]) -> str:
    """Why the driver behind a manifest is left out; empty where it is not."""
    known = probe_cache.load(_KIND, str(manifest), _state(manifest, environ))
    return str(known.get("reason", "")) if known else ""


def add(manifest: Path, environ: Mapping[str, str], why: str) -> None:
    """Leave a driver out until it or what is meant for it changes, or a day has passed."""
    probe_cache.store(_KIND, str(manifest), _state(manifest, environ), {"reason": why})


def lift(manifest: Path, environ: Mapping[str, str]) -> None:
    """Let a driver in again."""
    probe_cache.forget(_KIND, str(manifest), _state(manifest, environ))


def _state(manifest: Path, environ: Mapping[str, str]) -> list[str]:
    settings = [
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if name.startswith(DRIVER_VARIABLES) and name not in _PLACES
    ]
    return [stamp(manifest).decode(), stamp(library_of(manifest)).decode(), *settings]
