"""A device elsewhere is as one that is here: over every road the same session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tapml_rpc.tracker import list_devices
from tests.offload.forked import run_forked
from tests.offload.remote.served import Road
from tests.offload.sessions import FinishedSession, assert_same_verdicts, offload_arguments
from tests.rpc.tracker.trackers import TrackerProcess, wait_for

pytestmark = [pytest.mark.slow]

ROADS = ("tcp", "ws", "tcp with keys", "wss", "lent", "lent through the tracker, with keys")


@pytest.mark.parametrize("name", ROADS)
def test_a_session_over_every_road_ends_in_the_verdicts_of_one_at_home(
    name: str,
    roads: Mapping[str, Road],
    finished: FinishedSession,
    tracker: TrackerProcess,
    tmp_path: Path,
) -> None:
    road, session = roads[name], tmp_path / "session"
    ended = run_forked(
        *offload_arguments(finished.model, session, road.spec),
        cache=finished.cache,
        errors=tmp_path / "errors",
        **road.environment,
    )
    assert ended.exit_code == 0, ended.errors
    assert_same_verdicts(session, finished)
    wait_for(lambda: not any(device.leases for device in list_devices(tracker.address)))
