"""The Khronos validation layer; see :mod:`tapml_targets.checker`."""

from tapml_targets.vulkan_loader.validation import (
    MAX_MESSAGES,
    NAME,
    ON_DEVICES,
    UNOPTIMISED,
    environment,
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
