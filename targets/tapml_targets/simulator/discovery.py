"""When a list of simulated devices that was kept is out of date."""

from __future__ import annotations

from tapml_targets.simulator import toolchain
from tapml_targets.simulator.checker import log_of_this_process


def drivers_state() -> str:
    """Text that changes when compiler or simulator do, and in a process that checks."""
    checks = log_of_this_process() is not None
    return f"{toolchain.remedy() or toolchain.version()} {'checks' if checks else ''}"
