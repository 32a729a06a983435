"""Which parts of a self-test a device can be asked, and the kernels its platform has for them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library
from tapml_targets.platforms import check_platform
from tapml_targets.self_test.kernels import FEATURES, PARTS

BUFFERS: Final = "buffers"
"""The part that takes no kernel, so that every platform has it."""


def has_self_test(platform: str) -> bool:
    """Whether the platform brings kernels for one."""
    return (
        importlib.util.find_spec(f"tapml_targets.{check_platform(platform)}.self_test") is not None
    )


def parts_of(description: DeviceDescription) -> tuple[str, ...]:
    """The parts that a device can be tested for: what it lacks the feature for is left out."""
    if not has_self_test(description.platform):
        return (BUFFERS,)
    features = description.limits.features
    return (BUFFERS, *(p for p in PARTS if p not in FEATURES or FEATURES[p] in features))


def libraries_of(description: DeviceDescription) -> dict[str, Library]:
    """The Library of each part that takes kernels."""
    parts = [part for part in parts_of(description) if part != BUFFERS]
    if not parts:
        return {}
    module = importlib.import_module(f"tapml_targets.{description.platform}.self_test")
    return {part: module.self_test_library(part, description.limits) for part in parts}
