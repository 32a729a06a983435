"""Drivers that hang or crash when they are asked for their devices, and are left out for a day."""

from __future__ import annotations

from pathlib import Path

from tapml_targets import probe_cache
from tapml_targets.webgpu.vendors import library_of, stamp

_KIND = "vulkan-quarantine"


def reason(manifest: Path) -> str:
    """Why the driver behind a manifest is left out; empty where it is not."""
    known = probe_cache.load(_KIND, str(manifest), _state(manifest))
    return str(known.get("reason", "")) if known else ""


def add(manifest: Path, why: str) -> None:
    """Leave a driver out until it is replaced or a day has passed."""
    probe_cache.store(_KIND, str(manifest), _state(manifest), {"reason": why})


def lift(manifest: Path) -> None:
    """Let a driver in again."""
    probe_cache.forget(_KIND, str(manifest), _state(manifest))


def _state(manifest: Path) -> list[str]:
    return [stamp(manifest).decode(), stamp(library_of(manifest)).decode()]
