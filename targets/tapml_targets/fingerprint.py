"""What a verdict depends on about a device, as one hash and in parts."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tapml_targets.description_format import to_plain
from tapml_targets.driver import DeviceDescription

# Where a device stands in its list and what its memory is shared with now say nothing about it.
_PASSING: Final = ("index",)
_PASSING_DETAILS: Final = ("clock_mhz",)
_PASSING_LIMITS: Final = ("memory_bytes", "max_buffer_bytes")
_SHORT: Final = 16


def fingerprint(description: DeviceDescription) -> str:
    """A SHA-256 in hexadecimal over platform, driver version, name, limits and details.

    Two processes that open the same device with the same driver get the same value; an update of
    the driver gives another. Amounts of memory and the clock are left out: on a processor they
    follow what else runs.
    """
    return _hash(_lasting(description))


def fingerprint_parts(description: DeviceDescription) -> dict[str, str]:
    """The fingerprint by parts, so that a change can be named.

    Returns
    -------
    dict
        ``driver`` and ``device`` as text, ``limits`` and ``details`` (the implementation behind
        the device and its type among them) as short hashes. Where a fingerprint changes, one of
        these does.
    """
    data = _lasting(description)
    limits, driver = data.pop("limits"), data.pop("driver_version")
    device = f"{data.pop('platform')} {data.pop('name')}"
    return {
        "driver": driver,
        "device": device,
        "limits": _hash(limits)[:_SHORT],
        "details": _hash(data)[:_SHORT],
    }


def _lasting(description: DeviceDescription) -> dict[str, Any]:
    data = to_plain(description)
    for name in _PASSING:
        del data[name]
    for name in _PASSING_LIMITS:
        del data["limits"][name]
    for name in _PASSING_DETAILS:
        data["details"].pop(name, None)
    return data


def _hash(data: dict[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
