"""Drivers that hang or crash when they are asked for their devices, and are left out for a day."""

from __future__ import annotations

from tapml_targets import probe_cache
from tapml_targets.opencl.vendors import SYSTEM_VENDORS, library_path, stamp

_KIND = "quarantine"


def reason(name: str, data: bytes) -> str:
    """Why the driver behind an `.icd` file is left out; empty where it is not."""
    known = probe_cache.load(_KIND, name, _state(data))
    return str(known.get("reason", "")) if known else ""


def add(name: str, data: bytes, why: str) -> None:
    """Leave a driver out until it is replaced or a day has passed."""
    probe_cache.store(_KIND, name, _state(data), {"reason": why})


def lift(name: str, data: bytes) -> None:
    """Let a driver in again."""
    probe_cache.forget(_KIND, name, _state(data))


def _state(data: bytes) -> list[str]:
    library = data.decode(errors="replace").strip()
    return [library, stamp(library_path(library, SYSTEM_VENDORS)).decode()]
