"""How users name devices of a tracker."""

from __future__ import annotations

from typing import Any

import pytest

from tapml.devices import tracker as asking
from tapml.devices.tracker import parse_spec, resolve, tracker_address
from tapml_rpc.tracker.lease import Lease
from tapml_rpc.tracker.request import QueuePlace, request_device
from tapml_targets.errors import InputError, NoSuchDeviceError, SetupError
from tests.rpc.tracker.trackers import TrackerProcess, made_up_device, registered


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("tracker", {}),
        ("tracker:pixel-6.lab", {"name": "pixel-6.lab"}),
        ("tracker:kind=opencl", {"kind": "opencl", "features": [], "limits": {}}),
        (
            "tracker:kind=webgpu,feature=float16,feature=subgroups,min_buffer_bytes=1024",
            {
                "kind": "webgpu",
                "features": ["float16", "subgroups"],
                "limits": {"min_buffer_bytes": 1024},
            },
        ),
        ("tracker:pixel,wait=0", {"name": "pixel", "features": [], "limits": {}, "wait": 0}),
        (
            "tracker:kind=opencl,wait=90",
            {"kind": "opencl", "features": [], "limits": {}, "wait": 90},
        ),
    ],
)
def test_a_spec_says_name_or_needs(text: str, asked: dict[str, Any]) -> None:
    assert parse_spec(text) == asked


@pytest.mark.parametrize(
    "text",
    [
        "opencl:0",
        "tracker:a b",
        "tracker:kind=",
        "tracker:kind=a,kind=b",
        "tracker:colour=red",
        "tracker:min_buffer_bytes=big",
        "tracker:min_buffer_bytes=-1",
        "tracker:pixel,name=phone",
        "tracker:pixel,",
        "tracker:pixel,wait=soon",
        "tracker:pixel,wait=1,wait=2",
    ],
)
def test_a_spec_that_asks_for_nothing_known_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_spec(text)


def test_the_address_is_the_given_one_or_the_environments() -> None:
    assert tracker_address("tcp://a:1", {"TAPML_TRACKER": "tcp://b:1"}) == "tcp://a:1"
    assert tracker_address(None, {"TAPML_TRACKER": "tcp://b:1"}) == "tcp://b:1"
    with pytest.raises(InputError, match=r"set TAPML_TRACKER to its tcp://HOST:PORT"):
        tracker_address(None, {})


def test_a_spec_is_resolved_to_a_lease(shared_tracker: TrackerProcess) -> None:
    device = made_up_device("webgpu", "float16")
    with (
        registered(shared_tracker.address, "phone", device),
        registered(shared_tracker.address, "board"),
        resolve("tracker:feature=float16", shared_tracker.address, timeout=60) as lease,
    ):
        assert lease.name == "phone"


def test_a_device_that_nobody_has_is_not_waited_for_for_ever(
    shared_tracker: TrackerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ABSENT_SECONDS", 0.3)
    with registered(shared_tracker.address, "pixel"):
        with pytest.raises(NoSuchDeviceError, match=r"a device named pixle for 0\.3 s.*are pixel"):
            resolve("tracker:pixle", shared_tracker.address)
        with pytest.raises(NoSuchDeviceError, match=r"a device named pixle for 0 s"):
            resolve("tracker:pixle,wait=0", shared_tracker.address)


def test_who_holds_a_device_does_not_wait_for_itself(shared_tracker: TrackerProcess) -> None:
    tracker = shared_tracker.address
    with registered(tracker, "pixel"):
        said = "named pixel is held by this very process"
        with resolve("tracker:pixel", tracker), pytest.raises(InputError, match=said):
            resolve("tracker:pixel", tracker, own_seconds=0.3)
        # Somebody else may give it back.
        theirs = request_device(tracker, name="pixel", label="ada@desk")
        with theirs, pytest.raises(SetupError, match="held by ada@desk"):
            resolve("tracker:pixel,wait=0", tracker, own_seconds=0.0)


def test_one_that_is_held_is_waited_for_as_long_as_asked(
    shared_tracker: TrackerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ABSENT_SECONDS", 0.0)
    held: list[Lease] = []

    def free_it(place: QueuePlace) -> None:
        if place.devices and held:
            held.pop().release()

    with registered(shared_tracker.address, "pixel"):
        held.append(resolve("tracker:pixel", shared_tracker.address))
        with pytest.raises(SetupError, match=r"was not free within 0 s \(number 1 in the queue"):
            resolve("tracker:pixel,wait=0", shared_tracker.address)
        resolve("tracker:pixel", shared_tracker.address, on_queue=free_it).release()
