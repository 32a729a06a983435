"""The parts of a self-test that fit a device, and their kernels."""

from __future__ import annotations

from typing import Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library
from tapml_targets.platforms import has_part, platform_part
from tapml_targets.self_test.kernels import FEATURES, PARTS

BUFFERS: Final = "buffers"
"""The part without a kernel, which every platform has."""


def has_self_test(platform: str) -> bool:
    """Whether the platform has self-test kernels."""
    return has_part(platform, "self_test")


def parts_of(description: DeviceDescription) -> tuple[str, ...]:
    """The parts for whose features the device allows a test."""
    if not has_self_test(description.platform):
        return (BUFFERS,)
    features = description.limits.features
    return (BUFFERS, *(p for p in PARTS if p not in FEATURES or FEATURES[p] in features))


def libraries_of(description: DeviceDescription) -> dict[str, Library]:
    """The Library of each part that takes kernels."""
    parts = [part for part in parts_of(description) if part != BUFFERS]
    if not parts:
        return {}
    module = platform_part(description.platform, "self_test")
    return {part: module.self_test_library(part, description.limits) for part in parts}
