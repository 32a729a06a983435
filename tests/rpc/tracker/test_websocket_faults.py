"""Whoever is killed or stopped, over WebSocket as over ZeroMQ: nobody waits, nothing stays busy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tapml.devices.listing import list_devices
from tapml_rpc.client import connect
from tapml_rpc.session import Session
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.request import request_device
from tapml_targets.errors import DeviceLostError, TapmlError
from tests.rpc.tracker.trackers import (
    PATIENCE_SECONDS,
    Child,
    TrackerProcess,
    device_process,
    foreign_device,
    holder,
    registered,
    wait_for,
)

USES = (
    "import sys\n"
    "from tapml.devices.reach import open_device\n"
    "session = open_device('tracker:page')\n"
    "buffer = session.allocate(1 << 20)\n"
    "session.fence()\n"
    "print('there', flush=True)\n"
    "sys.stdin.readline()\n"
)


@pytest.fixture(scope="module")
def impatient() -> Iterator[TrackerProcess]:
    """A tracker that soon holds silence against its WebSocket peers."""
    options = ("--websocket", "ws://127.0.0.1:0", "--silence", "3")
    with TrackerProcess("tcp://127.0.0.1:0", *options) as process:
        yield process


@contextmanager
def leased(tracker: str, name: str, lost: list[TapmlError]) -> Iterator[tuple[Lease, Session]]:
    """A lease on a relayed device, and a session there."""
    with (
        request_device(
            tracker, name=name, timeout=PATIENCE_SECONDS, on_lost=lost.append, label="us"
        ) as lease,
        connect(lease.address, lease=lease, timeout=PATIENCE_SECONDS) as session,
    ):
        session.fence()
        yield lease, session


def assert_lost(session: Session, why: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    with pytest.raises(DeviceLostError, match=why):
        while time.monotonic() < deadline:
            session.fence()


def names(tracker: str) -> list[str]:
    return [device.name for device in list_devices(tracker, timeout=PATIENCE_SECONDS)]


def test_a_killed_tracker_is_noticed_and_devices_come_back_to_the_next_by_themselves(
    tracker: TrackerProcess,
) -> None:
    lost: list[TapmlError] = []
    ended: list[str] = []
    website = tracker.websocket
    with (
        foreign_device(website, "page") as page,
        registered(website, "board", on_lease_ended=ended.append) as board,
        request_device(website, name="board") as held,
    ):
        assert page.ready.wait(PATIENCE_SECONDS)
        with leased(website, "page", lost) as (lease, session):
            tracker.kill()
            wait_for(lambda: lost and ended == [held.id] and not board._registered.is_set())
            assert_lost(session, f"the lease on 'page' is over: the tracker at {website} is gone")
            with pytest.raises(
                DeviceLostError, match=f"the lease on 'page' is over: the tracker at {website} is"
            ):
                lease.check()
        wait_for(lambda: "alone" in page.lines)
        with tracker.again() as second:
            assert second.websocket == website
            wait_for(lambda: names(website) == ["board", "page"])
            assert not any(device.leases for device in list_devices(website))
            with leased(website, "page", []) as (_, session):
                session.fence()


def test_a_device_that_dies_ends_its_lease_and_the_queue_gets_the_next_one(
    shared_tracker: TrackerProcess,
) -> None:
    lost: list[TapmlError] = []
    website = shared_tracker.websocket
    with foreign_device(website, "frail") as first:
        assert first.ready.wait(PATIENCE_SECONDS)
        with leased(website, "frail", lost) as (_, session), holder(website, "frail") as waiting:
            first.process.kill()
            wait_for(lambda: lost)
            assert isinstance(lost[0], DeviceLostError)
            assert "the device 'frail' is gone" in str(lost[0])
            assert_lost(session, "the device 'frail' is gone")
            wait_for(lambda: "frail" not in names(website))
            with foreign_device(website, "frail") as next_one:
                assert waiting.ready.wait(PATIENCE_SECONDS)
                wait_for(lambda: "lease holder" in next_one.lines)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_client_that_vanishes_with_a_lease_gives_it_to_the_next(
    impatient: TrackerProcess, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    website = impatient.websocket
    monkeypatch.setenv("TAPML_TRACKER", website)
    with foreign_device(website, "page") as page, Child(USES) as client:
        assert client.ready.wait(PATIENCE_SECONDS)
        client.process.kill() if how == "kill" else client.stop()
        with leased(website, "page", []) as (_, session):
            session.write(session.allocate(1 << 20), os.urandom(1 << 20))
            session.fence()
        wait_for(lambda: any(line.startswith("ended its holder is gone") for line in page.lines))
    wait_for(lambda: names(website) == [])


def test_a_device_that_is_stopped_loses_its_lease_comes_back_and_knows_that_nobody_has_it(
    impatient: TrackerProcess,
) -> None:
    lost: list[TapmlError] = []
    website = impatient.websocket
    with device_process(website, "sleepy") as device:
        assert device.ready.wait(PATIENCE_SECONDS)
        with request_device(website, name="sleepy", on_lost=lost.append):
            device.stop()
            wait_for(lambda: lost)
            assert "the device 'sleepy' is gone: silent for 3 s" in str(lost[0])
            device.go_on()
            wait_for(lambda: any("ended:" in line for line in device.lines))
        wait_for(lambda: names(website) == ["sleepy"])
