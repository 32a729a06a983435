"""Probe results on disk, so that a warm ranking starts no process."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tapml_targets.cache_folder import cache_folder, write_atomically

FRESH_SECONDS: Final = 24 * 3600.0
# A failure may be temporary: a machine under load, a driver being installed.
FRESH_FAILURE_SECONDS: Final = 600.0
_MAX_BYTES: Final = 1 << 20
_FORMAT: Final = 2


def load(kind: str, name: str, state: Any) -> dict[str, Any] | None:
    """The value stored for the same `state`; None if it is missing or too old."""
    try:
        path = _path(kind, name, state)
        if path.stat().st_size > _MAX_BYTES:
            return None
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("value"), dict):
        return None
    value: dict[str, Any] = data["value"]
    stored = data.get("stored")
    fresh = FRESH_FAILURE_SECONDS if "problem" in value else FRESH_SECONDS
    if not isinstance(stored, int | float) or not 0 <= time.time() - stored < fresh:
        return None
    return value


def store(kind: str, name: str, state: Any, value: dict[str, Any]) -> None:
    """Keep `value`; a cache that cannot be written is ignored."""
    try:
        data = json.dumps({"stored": time.time(), "value": value}).encode()
        write_atomically(_path(kind, name, state), data)
    except OSError:
        return


def forget(kind: str, name: str, state: Any) -> None:
    """Remove a stored value."""
    with suppress(OSError):
        _path(kind, name, state).unlink()


def _path(kind: str, name: str, state: Any) -> Path:
    text = json.dumps([_FORMAT, kind, name, state], sort_keys=True)
    return cache_folder("devices") / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()}.json"
