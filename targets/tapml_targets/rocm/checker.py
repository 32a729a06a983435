"""The simulator's checked mode; see :mod:`tapml_targets.checker`."""

from tapml_targets.simulator.checker import (
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
