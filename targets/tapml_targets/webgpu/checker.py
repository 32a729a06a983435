"""The Khronos validation layer below wgpu; see :mod:`tapml_targets.checker`.

wgpu's compiler clamps every index, so that no access is out of bounds there: what is found are
races. The layer's checks of the calls are off: they are of wgpu's own, and one of them objects to
every module that its compiler writes.
"""

from __future__ import annotations

from pathlib import Path

from tapml_targets.vulkan_loader import validation
from tapml_targets.vulkan_loader.validation import (
    MAX_MESSAGES,
    NAME,
    ON_DEVICES,
    UNOPTIMISED,
    find_checker,
    is_silenced,
    read_messages,
)

__all__ = [
    "MAX_MESSAGES",
    "NAME",
    "ON_DEVICES",
    "UNOPTIMISED",
    "environment",
    "find_checker",
    "is_silenced",
    "read_messages",
]


def environment(library: Path, log: Path) -> dict[str, str]:
    """See :func:`tapml_targets.vulkan_loader.validation.environment`."""
    return validation.environment(library, log) | {"VK_LAYER_VALIDATE_CORE": "0"}
