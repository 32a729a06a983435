"""A DeviceDescription as plain data, for JSON files and other processes, and as a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final, TypeVar

import msgspec

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import NoSuchDeviceError, ProtocolError
from tapml_targets.limits import Limits

# Left out where the platform states none: a peer that knows no such limit reads the rest.
_LATER_LIMITS: Final = frozenset(
    [
        "max_binding_bytes",
        "max_storage_buffers",
        "offset_alignment",
        "subgroup_widths",
        "architecture",
        "push_constant_bytes",
    ]
)
_NONE: Final = asdict(Limits())
_Found = TypeVar("_Found")
_LISTS: Final = frozenset(name for name, none in _NONE.items() if isinstance(none, tuple))


def to_plain(description: DeviceDescription) -> dict[str, Any]:
    """`description` as maps, lists, numbers and text; features are sorted."""
    data = asdict(description)
    data["limits"]["features"] = sorted(description.limits.features)
    for name in _LATER_LIMITS:
        if data["limits"][name] == _NONE[name]:
            del data["limits"][name]
    for name in _LISTS & data["limits"].keys():
        data["limits"][name] = list(data["limits"][name])
    return data


def from_plain(data: object) -> DeviceDescription:
    """Read what :func:`to_plain` gave.

    Raises
    ------
    ProtocolError
        If a field is missing, unknown or of another type.
    """
    try:
        found = msgspec.convert(data, DeviceDescription)
    except ValueError as error:
        raise ProtocolError(f"a device description: {error}") from None
    plain: Any = data
    limits = plain["limits"].keys() | _LATER_LIMITS
    if wrong := (plain.keys() ^ _names(DeviceDescription)) | (limits ^ _names(Limits)):
        raise ProtocolError(
            f"a device description lacks or adds {', '.join(map(str, wrong))[:200]}"
        )
    return found


def find_again(
    wanted: DeviceDescription,
    listed: Sequence[_Found],
    describe: Callable[[_Found, int], DeviceDescription],
    hint: str = "",
) -> tuple[_Found, DeviceDescription]:
    """The one of a driver's devices that was described before, and what it is described as now.

    Parameters
    ----------
    wanted
        As it was described, maybe in another process.
    listed
        What the driver lists, in its order.
    describe
        Describes what stands at an index of the list.
    hint
        What else helps, for the error.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    """
    places = list(enumerate(listed))
    # The index is the first guess; drivers may come and go between two processes.
    places.sort(key=lambda place: place[0] != wanted.index)
    told = wanted.name, wanted.vendor_platform, wanted.driver_version
    for index, device in places:
        found = describe(device, index)
        if (found.name, found.vendor_platform, found.driver_version) == told:
            return device, found
    raise NoSuchDeviceError(
        f"the {wanted.platform} device {wanted.name!r} of {wanted.vendor_platform} "
        f"({wanted.driver_version}) is not here; `tapml devices` lists what is"
        + (f"; {hint}" if hint else "")
    )


def _names(kind: type[DeviceDescription] | type[Limits]) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind))


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
    microcode, a library below the driver). A caller that knows the facts from before marks
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
