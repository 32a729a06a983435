"""What a verdict depends on about a device, as one hash and in parts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

from tapml_targets.description_format import to_plain
from tapml_targets.driver import DeviceDescription

# Where a device stands in its list and what its memory is shared with now say nothing about it.
_PASSING: Final = ("index",)
_PASSING_DETAILS: Final = ("clock_mhz",)
_PASSING_LIMITS: Final = ("memory_bytes", "max_buffer_bytes")
_SHORT: Final = 16
MEASURED: Final = "measured_otherwise"
"""The detail that :func:`measured_otherwise` adds."""


def fingerprint(description: DeviceDescription) -> str:
    """A SHA-256 in hexadecimal over platform, driver version, name, limits and details.

    Two processes that open the same device with the same driver get the same value; an update of
    the driver gives another. Amounts of memory and the clock are left out: on a processor they
    follow what else runs.

    What a self-test measures (:mod:`tapml_targets.self_test`) is no part of it. A driver's name and
    version stand for what it does, so a verdict says as much with a self-test beside it as without;
    and were its facts hashed, a tapml that learns to measure one more would void every verdict of
    every session. One case is different: the same driver on the same device that measures
    *differently from before* is another device in all but name (a setting of the system, another
    microcode, a library below the driver). Whoever sees that, having the facts from before, marks
    the description with :func:`measured_otherwise`, and the fingerprint changes with it.
    """
    return _hash(_lasting(description))


def measured_otherwise(description: DeviceDescription, changed: str) -> DeviceDescription:
    """The same device, under the fingerprint of one that does not do what it did.

    Parameters
    ----------
    changed
        What it does now, as text that is the same whenever it does; empty for a device that does
        what it did, whose description and fingerprint stay.
    """
    details = {name: text for name, text in description.details.items() if name != MEASURED}
    if changed:
        details[MEASURED] = hashlib.sha256(changed.encode()).hexdigest()[:_SHORT]
    return replace(description, details=details)


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
