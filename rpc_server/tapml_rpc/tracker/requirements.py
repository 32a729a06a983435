"""What a client requires of a device, and whether a device meets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from tapml_rpc import wire
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.limits import Limits

# min_buffer_bytes asks for a device whose max_buffer_bytes is at least that.
LIMITS: Final[Mapping[str, str]] = {
    "min_" + each.name.removeprefix("max_"): each.name
    for each in fields(Limits)
    if type(each.default) is int
}
_MAX_FEATURES: Final = 32
_NAME_CHARACTERS: Final = 64


@dataclass(frozen=True)
class Requirements:
    """What a device must be and have; an empty `name` or `kind` (platform) means any.

    `limits` are least values by name: ``min_buffer_bytes``, ``min_memory_bytes``,
    ``min_shared_memory_bytes`` in bytes, ``min_threads_per_block``, ``min_arguments``. A limit its
    platform does not state counts as met.
    """

    name: str = ""
    kind: str = ""
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)

    def unmet(self, name: str, device: DeviceDescription) -> str:
        """What a device lacks, in words; empty if it lacks nothing."""
        if self.name and self.name != name:
            return f"its name is not {self.name}"
        if self.kind and self.kind != device.platform:
            return f"it is {device.platform}, not {self.kind}"
        missing = self.features - device.limits.features
        if missing:
            return f"it has no {', '.join(sorted(missing))}"
        for asked, least in self.limits.items():
            there = getattr(device.limits, LIMITS[asked])
            if 0 < there < least:
                return f"its {LIMITS[asked]} is {there}, not {least}"
        return ""

    def __str__(self) -> str:
        parts = [f"{asked} {least}" for asked, least in self.limits.items()]
        if self.features:
            parts.insert(0, f"with {', '.join(sorted(self.features))}")
        if self.kind:
            parts.insert(0, f"of kind {self.kind}")
        if self.name:
            parts.insert(0, f"named {self.name}")
        return "a device " + " and ".join(parts) if parts else "any device"

    def to_wire(self) -> dict[str, Any]:
        """Plain data for a request."""
        return {
            "name": self.name,
            "kind": self.kind,
            "features": sorted(self.features),
            "limits": dict(self.limits),
        }

    @classmethod
    def from_wire(cls, data: Any) -> Requirements:
        """Check a peer's requirements.

        Raises ProtocolError if a field has another type or length, InputError for an unknown limit.
        """
        if type(data) is not dict:
            raise ProtocolError("requirements must be a map")
        limits = data.get("limits", {})
        if type(limits) is not dict or len(limits) > len(LIMITS):
            raise ProtocolError(f"limits must be a map of at most {len(LIMITS)}")
        return cls.of(
            wire.text(data.get("name", ""), "name", _NAME_CHARACTERS),
            wire.text(data.get("kind", ""), "kind", _NAME_CHARACTERS),
            [
                wire.text(feature, "feature", _NAME_CHARACTERS)
                for feature in wire.array(data.get("features", []), "features", _MAX_FEATURES)
            ],
            {
                wire.text(asked, "limit", _NAME_CHARACTERS): wire.integer(least, "limit")
                for asked, least in limits.items()
            },
        )

    @classmethod
    def of(
        cls,
        name: str = "",
        kind: str = "",
        features: Iterable[str] = (),
        limits: Mapping[str, int] | None = None,
    ) -> Requirements:
        """Requirements with checked names of limits.

        Raises InputError, which lists the known ones.
        """
        unknown = sorted(set(limits or ()) - LIMITS.keys())
        if unknown:
            raise InputError(f"no limit is called {unknown[0]!r}; there are {', '.join(LIMITS)}")
        return cls(name, kind, frozenset(features), dict(limits or {}))
