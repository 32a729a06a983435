"""Target: a platform with compiler options and limits, for which code is generated."""

from __future__ import annotations

from dataclasses import dataclass

from tapml_targets.limits import Limits


@dataclass(frozen=True)
class Target:
    """A platform and the options its code generator takes.

    Attributes
    ----------
    platform
        Folder name of the platform: ``cpu``, ``opencl``.
    options
        Sorted (name, value) pairs, part of every cache key.
    limits
        Bounds that schedules are made for and that preflight checks.
    """

    platform: str
    options: tuple[tuple[str, str], ...] = ()
    limits: Limits = Limits()
