"""Checks that kernels stay within their windows, and logs as the simulator does."""

from __future__ import annotations

from pathlib import Path

from tapml_abacus import driver
from tapml_targets.simulator import checker

NAME = "the abacus"
MAX_MESSAGES, UNOPTIMISED = checker.MAX_MESSAGES, checker.UNOPTIMISED
ON_DEVICES = checker.ON_DEVICES
read_messages, is_silenced = checker.read_messages, checker.is_silenced
find_checker = driver.zig


def environment(library: Path, log: Path) -> dict[str, str]:
    """Variables of a process that checks."""
    return {driver.LOG: str(log)}
