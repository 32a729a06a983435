"""A setting that agrees with one device but is far slower has a verdict of its own."""

from __future__ import annotations

import pytest

from tapml.distributed.comparing import _perhaps_slow
from tapml.distributed.results import Outcome, RunResult, Setting


@pytest.mark.parametrize(
    ("seconds", "once", "outcome"),
    [
        (29.0, 0.1, Outcome.EQUAL),
        (31.0, 0.1, Outcome.SLOW),
        (199.0, 5.0, Outcome.EQUAL),
        (201.0, 5.0, Outcome.SLOW),
    ],
)
def test_slow_is_beyond_half_a_minute_and_twenty_times_one_device_for_each_rank(
    seconds: float, once: float, outcome: Outcome
) -> None:
    setting = Setting(engine="ddp", world=2)
    given = RunResult(setting=setting, outcome=Outcome.EQUAL, seconds=seconds)
    found = _perhaps_slow(given, once)
    assert found.outcome is outcome
    assert (found.reason == "") is (outcome is Outcome.EQUAL)
