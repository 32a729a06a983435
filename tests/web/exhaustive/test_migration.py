"""A migration to a browser's page that meets every fault, and to every WebGPU driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RequireDevice
from tests.offload.sessions import FinishedSession, read_report
from tests.web.doorway import Doorway
from tests.web.end_to_end.test_migration import (
    FAULTS,
    TRACKER_OPTIONS,
    assert_moved_whole,
    goes_on_after,
)
from tests.web.pages import DevicePage

__all__ = ["TRACKER_OPTIONS"]


def test_a_session_goes_on_after_all_that_ends_a_page(
    finished: FinishedSession,
    webgpu_cache: Path,
    shown: DevicePage,
    doorway: Doorway,
    tmp_path: Path,
) -> None:
    goes_on_after(tuple(FAULTS), finished, webgpu_cache, shown, doorway, tmp_path)


@pytest.mark.parametrize("number", [0, 1])
def test_every_operator_moves_to_each_driver_of_this_machine(
    number: int,
    finished: FinishedSession,
    moved_to_driver: Callable[[int], Path],
    require_device: RequireDevice,
) -> None:
    devices = sorted(each.index for each in require_device("webgpu"))
    if number >= len(devices):
        pytest.skip(f"this machine has {len(devices)} WebGPU adapters")
    session = moved_to_driver(devices[number])
    assert_moved_whole(session)
    assert read_report(session)["final"]["prompts"] == finished.report["final"]["prompts"]
