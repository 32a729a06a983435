"""DeviceDescription as plain data, for the welcome and for ``--json``."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from tapml_rpc import wire
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError
from tapml_targets.limits import Limits


def description_to_wire(device: DeviceDescription) -> dict[str, Any]:
    """Plain data of a device description; features become a sorted list."""
    data = asdict(device)
    limits = data["limits"]
    limits["features"] = sorted(device.limits.features)
    limits["max_block"], limits["max_grid"] = (
        list(device.limits.max_block),
        list(device.limits.max_grid),
    )
    return data


def description_from_wire(data: Any) -> DeviceDescription:
    """Check a peer's device description.

    Raises
    ------
    ProtocolError
        If a field is missing or has the wrong type.
    """
    if not isinstance(data, dict):
        raise ProtocolError("a device description must be a map")
    texts = ("platform", "name", "vendor_platform", "device_type", "driver_version")
    details = data.get("details", {})
    if not isinstance(details, dict):
        raise ProtocolError("device details must be a map of strings")
    return DeviceDescription(
        **{name: wire.text(data.get(name), f"device {name}") for name in texts},
        index=wire.integer(data.get("index"), "device index"),
        limits=_limits_from_wire(data.get("limits")),
        details={
            wire.text(key, "detail name"): wire.text(value, f"detail {key!r}", 65536)
            for key, value in details.items()
        },
    )


def _limits_from_wire(data: Any) -> Limits:
    if not isinstance(data, dict):
        raise ProtocolError("device limits must be a map")
    values: dict[str, Any] = {}
    for field in fields(Limits):
        what = f"limit {field.name!r}"
        given = data.get(field.name)
        if field.name == "features":
            values[field.name] = frozenset(wire.text(f, "feature") for f in wire.array(given, what))
        elif field.name in ("max_block", "max_grid"):
            extents = wire.array(given, what, 3)
            if len(extents) != 3:
                raise ProtocolError(f"{what} must hold three extents, got {extents}")
            values[field.name] = tuple(wire.integer(extent, what) for extent in extents)
        else:
            values[field.name] = wire.integer(given, what)
    return Limits(**values)
