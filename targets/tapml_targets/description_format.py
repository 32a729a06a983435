"""A DeviceDescription as plain data: for JSON files and for another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError
from tapml_targets.limits import Limits

# Left out where the platform states none: a peer that knows no such limit reads the rest.
_LATER_LIMITS: Final = frozenset(("max_binding_bytes", "max_storage_buffers", "offset_alignment"))


def to_plain(description: DeviceDescription) -> dict[str, Any]:
    """`description` as maps, lists, numbers and text; features are sorted."""
    data = asdict(description)
    data["limits"]["features"] = sorted(description.limits.features)
    for name in ("max_block", "max_grid"):
        data["limits"][name] = list(data["limits"][name])
    for name in _LATER_LIMITS:
        if not data["limits"][name]:
            del data["limits"][name]
    return data


def from_plain(data: object) -> DeviceDescription:
    """Read what :func:`to_plain` gave.

    Raises
    ------
    ProtocolError
        If a field is missing, unknown or of another type.
    """
    found = _fields(data, DeviceDescription)
    limits = _fields(found["limits"], Limits, optional=_LATER_LIMITS)
    details = found["details"]
    texts = ("platform", "name", "vendor_platform", "device_type", "driver_version")
    extents = ("max_block", "max_grid")
    features = limits["features"]
    if not (
        all(isinstance(found[name], str) for name in texts)
        and _is_count(found["index"])
        and isinstance(details, dict)
        and all(isinstance(text, str) for pair in details.items() for text in pair)
        and isinstance(features, list)
        and all(isinstance(feature, str) for feature in features)
        and all(_is_extents(limits[name]) for name in extents)
        and all(_is_count(limits[n]) for n in limits.keys() - {*extents, "features"})
    ):
        raise ProtocolError("a device description has a field of the wrong type")
    numbers = {name: limits[name] for name in limits.keys() - {*extents, "features"}}
    return DeviceDescription(
        **{name: found[name] for name in texts},
        index=found["index"],
        details=dict(details),
        limits=Limits(
            **numbers,
            max_block=tuple(limits["max_block"]),
            max_grid=tuple(limits["max_grid"]),
            features=frozenset(features),
        ),
    )


def _fields(
    data: object,
    kind: type[DeviceDescription] | type[Limits],
    *,
    optional: frozenset[str] = frozenset(),
) -> Mapping[str, Any]:
    expected = {field.name for field in fields(kind)}
    if not isinstance(data, dict) or data.keys() | optional != expected:
        raise ProtocolError(f"expected a map of {', '.join(sorted(expected))}")
    return data


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_extents(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_count, value))
