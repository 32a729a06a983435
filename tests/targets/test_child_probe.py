"""Drivers are asked in a process of its own, which may hang or die."""

from __future__ import annotations

import os

import pytest

from tapml_targets import child_probe
from tapml_targets.errors import InputError
from tests.conftest import RequireDevice


def test_a_child_that_does_not_answer_is_ended_at_its_deadline() -> None:
    answer, problem = child_probe.ask_child(["list", "opencl"], 0.05, slow_hint=" (wait longer)")
    assert answer is None
    assert problem == "no answer within 0.05 s (wait longer)"


def test_a_crashing_driver_is_reported_with_signal_and_last_output(
    require_device: RequireDevice,
) -> None:
    require_device("opencl", vendor="Portable")
    # PoCL asserts that the folder it is given has a name.
    answer, problem = child_probe.ask_child(
        ["list", "opencl"], 30.0, dict(os.environ) | {"POCL_CACHE_DIR": ""}
    )
    assert answer is None
    assert "SIGABRT" in problem and "pocl_cache" in problem


def test_a_slow_machine_may_be_given_longer() -> None:
    assert child_probe.probe_seconds({}) == child_probe.LIST_SECONDS
    assert child_probe.probe_seconds({"TAPML_PROBE_SECONDS": "300"}) == 300
    with pytest.raises(InputError, match="TAPML_PROBE_SECONDS is 'soon': expected 1 to 3600"):
        child_probe.probe_seconds({"TAPML_PROBE_SECONDS": "soon"})
