"""How users name devices of a tracker."""

from __future__ import annotations

from typing import Any

import pytest

from tapml_rpc.tracker import is_tracker_spec, resolve, tracker_address
from tapml_rpc.tracker.spec import parse_spec
from tapml_targets.errors import InputError
from tests.rpc.tracker.trackers import TrackerProcess, made_up_device, registered


@pytest.mark.parametrize(
    ("spec", "asked"),
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
    ],
)
def test_a_spec_says_name_or_needs(spec: str, asked: dict[str, Any]) -> None:
    assert is_tracker_spec(spec)
    assert parse_spec(spec) == asked


@pytest.mark.parametrize(
    "spec",
    [
        "opencl:0",
        "tracker:a b",
        "tracker:kind=",
        "tracker:kind=a,kind=b",
        "tracker:colour=red",
        "tracker:min_buffer_bytes=big",
        "tracker:min_buffer_bytes=-1",
    ],
)
def test_a_spec_that_asks_for_nothing_known_is_refused(spec: str) -> None:
    with pytest.raises(InputError):
        parse_spec(spec)


def test_an_ordinary_device_is_no_trackers() -> None:
    assert not is_tracker_spec("opencl:0") and not is_tracker_spec("trackers")


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
        resolve("tracker:feature=float16", shared_tracker.address, timeout=5) as lease,
    ):
        assert lease.name == "phone"
