"""Whoever is killed or stopped, nobody waits for long and nothing stays busy."""

from __future__ import annotations

import signal
import time

import pytest

from tapml.devices.listing import list_devices
from tapml_rpc.tracker.request import request_device
from tapml_targets.errors import DeviceLostError, TapmlError
from tests.rpc.tracker.trackers import (
    Child,
    TrackerProcess,
    device_process,
    holder,
    registered,
    wait_for,
)

NOTICE_SECONDS = 30.0


def names(tracker: TrackerProcess) -> list[str]:
    return [device.name for device in list_devices(tracker.address, timeout=60)]


def assert_next_gets_it(tracker: TrackerProcess, name: str) -> None:
    started = time.monotonic()
    with request_device(tracker.address, name=name, timeout=60):
        assert time.monotonic() - started < NOTICE_SECONDS


def test_a_killed_tracker_is_noticed_by_holders_and_devices_which_come_back_to_the_next(
    tracker: TrackerProcess,
) -> None:
    lost: list[TapmlError] = []
    ended: list[str] = []
    with (
        registered(tracker.address, "direct", on_lease_ended=ended.append) as direct,
        registered(tracker.address, "hidden", relayed=True),
        request_device(tracker.address, name="direct", on_lost=lost.append) as lease,
    ):
        started = time.monotonic()
        tracker.kill()
        wait_for(lambda: lost and ended)
        assert time.monotonic() - started < NOTICE_SECONDS
        assert ended == [lease.id] and not direct._registered.is_set()
        with pytest.raises(DeviceLostError, match="the lease on 'direct' is over: the tracker at"):
            lease.check()
        with tracker.again() as second:
            wait_for(lambda: names(second) == ["direct", "hidden"])
            assert all(not device.leases for device in list_devices(second.address))
            assert_next_gets_it(second, "direct")


def test_a_stopped_tracker_is_noticed_and_forgives_when_it_goes_on(
    tracker: TrackerProcess,
) -> None:
    lost: list[TapmlError] = []
    with (
        registered(tracker.address, "pixel") as device,
        request_device(tracker.address, name="pixel", on_lost=lost.append),
    ):
        started = time.monotonic()
        tracker.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: lost and not device._registered.is_set())
        assert time.monotonic() - started < NOTICE_SECONDS
        tracker.process.send_signal(signal.SIGCONT)
        device.wait(60)
        assert_next_gets_it(tracker, "pixel")


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_device_that_dies_or_stops_ends_its_lease_and_its_holder_hears_its_name(
    shared_tracker: TrackerProcess, how: str
) -> None:
    lost: list[TapmlError] = []
    with device_process(shared_tracker.address, "frail") as device:
        assert device.ready.wait(60)
        with request_device(shared_tracker.address, name="frail", on_lost=lost.append):
            started = time.monotonic()
            device.process.kill() if how == "kill" else device.stop()
            wait_for(lambda: lost)
            assert time.monotonic() - started < NOTICE_SECONDS
            assert isinstance(lost[0], DeviceLostError)
            assert "the device 'frail' is gone" in str(lost[0])
        wait_for(lambda: names(shared_tracker) == [])
        if how == "stop":
            # It comes back by itself, and knows that nobody has it.
            device.go_on()
            wait_for(lambda: names(shared_tracker) == ["frail"])
            wait_for(lambda: any("ended:" in line for line in device.lines))


def test_a_stopped_client_loses_its_lease_to_the_next_and_hears_it_when_it_goes_on(
    shared_tracker: TrackerProcess,
) -> None:
    with (
        registered(shared_tracker.address, "patient"),
        holder(shared_tracker.address, "patient") as client,
    ):
        assert client.ready.wait(60)
        client.stop()
        assert_next_gets_it(shared_tracker, "patient")
        client.go_on()
        wait_for(lambda: any("lost:" in line for line in client.lines))


def test_a_client_too_busy_to_run_python_keeps_its_lease(shared_tracker: TrackerProcess) -> None:
    with (
        registered(shared_tracker.address, "kept"),
        holder(shared_tracker.address, "kept") as client,
    ):
        assert client.ready.wait(60)
        # Four seconds in C that never let go of the interpreter, as a compiler's may be.
        assert client.process.stdin is not None
        client.process.stdin.write(
            b"import ctypes; ctypes.PyDLL(None).usleep(4_000_000); print('done', flush=True)\n"
        )
        client.process.stdin.flush()
        wait_for(lambda: "done" in client.lines)
        time.sleep(0.5)
        assert not any("lost:" in line for line in client.lines)
        assert [device.leases[0].holder for device in list_devices(shared_tracker.address)] == [
            "holder"
        ]


def test_a_queue_of_clients_of_which_some_are_killed_is_served_to_its_end(
    shared_tracker: TrackerProcess,
) -> None:
    with registered(shared_tracker.address, "wanted"):
        clients: list[Child] = []
        try:
            for number in range(4):
                clients.append(holder(shared_tracker.address, "wanted", f"client{number}"))
            wait_for(lambda: any(client.ready.is_set() for client in clients))
            served: set[Child] = set()
            while len(served) < 3:
                current = next(c for c in clients if c.ready.is_set() and c not in served)
                served.add(current)
                current.process.kill()
                wait_for(lambda: any(c.ready.is_set() for c in clients if c not in served))
            last = next(c for c in clients if c not in served)
            assert last.process.stdin is not None
            last.process.stdin.write(b"\n\n")
            last.process.stdin.flush()
            assert last.process.wait(60) == 0
            assert_next_gets_it(shared_tracker, "wanted")
        finally:
            for client in clients:
                client.__exit__(None, None, None)
