"""The device on which a platform's checker works."""

from __future__ import annotations

from tapml.check.checker import open_checker
from tests.conftest import RequireDevice


def test_a_simulated_device_is_checked_as_the_one_that_is_named(
    require_device: RequireDevice,
) -> None:
    """ROCm has one with waves of 32 lanes, and one with 64."""
    *_, last = sorted(require_device("rocm", vendor="simulated"), key=lambda each: each.index)
    with open_checker("rocm", device=last.index) as checker:
        assert checker.session.device.limits.subgroup_widths == last.limits.subgroup_widths
