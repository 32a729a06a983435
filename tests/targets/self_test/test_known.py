"""The self-test runs in a process that may hang or die of it, and is remembered."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tapml_targets.cpu.driver import list_devices as list_processors
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError
from tapml_targets.fingerprint import fingerprint, fingerprint_parts, measured_otherwise
from tapml_targets.self_test import known
from tapml_targets.self_test.facts import Fact, SelfTest, changed_facts, from_plain, to_plain
from tapml_targets.self_test.known import known_self_test, remembered_self_test, usual_self_test

FLUSHES = Fact(
    "float32_denormal_results", "flushed", "", "kept", False, "measured", "they become zero",
    trait="flushes float32 denormals",
)  # fmt: skip
KEEPS = replace(FLUSHES, value="kept", sound=True, trait="")
ROOM = Fact("buffer_bytes", 1 << 20, "bytes", 1 << 20, True, "measured", "it holds", grave=True)
CUT = Fact(
    "loop_iterations", 65_535, "iterations", 150_000, False, "measured", "cut", True, "ends loops"
)


class Drivers:
    """What child processes come back with, by the part they were asked for."""

    def __init__(self, device: DeviceDescription) -> None:
        self.device = device
        self.fatal: dict[str, str] = {}
        self.asked: list[tuple[str, ...]] = []

    def ask(self, arguments: list[str], seconds: float) -> tuple[dict[str, Any] | None, str]:
        parts = arguments[3:]
        self.asked.append(tuple(parts))
        for part in parts:
            if part in self.fatal:
                return None, self.fatal[part]
        facts = tuple(replace(KEEPS, name=part) for part in parts)
        plain = to_plain(SelfTest(facts, (), 0.5))
        return {"fingerprint": fingerprint(self.device), "self_test": plain}, ""


@pytest.fixture
def drivers(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: DeviceDescription
) -> Drivers:
    made = Drivers(opencl_device)
    monkeypatch.setattr(known, "ask_child", made.ask)
    return made


def test_a_real_device_is_asked_once_and_remembered(
    own_cache: Path, opencl_device: DeviceDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert remembered_self_test(opencl_device) is None
    first = known_self_test(opencl_device)
    assert first.problems == ()
    monkeypatch.setattr(known, "ask_child", None)
    assert known_self_test(opencl_device) == first
    assert remembered_self_test(opencl_device) == first


def test_a_driver_that_dies_over_a_part_is_a_finding_about_that_part(drivers: Drivers) -> None:
    drivers.fatal = {"float64": "the driver ended the process with SIGSEGV"}
    found = known_self_test(drivers.device)
    assert found.problems == ("float64: the driver ended the process with SIGSEGV",)
    assert found.fact("core") is not None
    assert found.fact("float64") is None


def test_a_hang_costs_its_part_alone_and_is_asked_again_soon(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers.fatal = {"core": "no answer within 30 s"}
    found = known_self_test(drivers.device)
    assert "core: no answer within 30 s" in found.problems
    drivers.fatal.clear()
    assert known_self_test(drivers.device) == found
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert known_self_test(drivers.device).problems == ()


def test_refresh_asks_again_and_another_driver_is_another_device(drivers: Drivers) -> None:
    known_self_test(drivers.device)
    known_self_test(drivers.device, refresh=True)
    assert len(drivers.asked) == 2
    drivers.device = replace(drivers.device, driver_version="another")
    known_self_test(drivers.device)
    assert len(drivers.asked) == 3


def test_a_checker_is_tested_only_when_asked_to(drivers: Drivers) -> None:
    drivers.device = replace(drivers.device, device_type="checker")
    assert usual_self_test(drivers.device) is None
    assert drivers.asked == []
    assert usual_self_test(drivers.device, refresh=True) is not None
    assert usual_self_test(drivers.device) is not None


def test_a_real_child_that_has_no_such_device_says_so(
    own_cache: Path, opencl_device: DeviceDescription
) -> None:
    found = known_self_test(replace(opencl_device, index=999))
    assert found.facts == ()
    assert "IndexError" in found.problems[0]


def test_a_platform_without_kernels_is_asked_for_its_buffers(own_cache: Path) -> None:
    (processor,) = list_processors()
    found = known_self_test(processor)
    assert [fact.name for fact in found.facts] == ["buffer_bytes", "buffer_round_trip"]
    assert found.grave == ()


def test_facts_travel_as_plain_data_and_nothing_else_is_read() -> None:
    given = SelfTest((FLUSHES, ROOM, CUT), ("float64: it hung",), 1.5)
    plain = to_plain(given)
    assert from_plain(plain) == given
    damaged: list[object] = [
        None, [], {}, plain | {"revision": 0}, plain | {"facts": [1]}, plain | {"problems": "no"},
        plain | {"facts": [plain["facts"][0] | {"sound": "yes"}]},
        plain | {"facts": [plain["facts"][0] | {"more": 1}]},
        plain | {"facts": [plain["facts"][0] | {"value": float("nan")}]},
        plain | {"seconds": True}, plain | {"facts": plain["facts"] * 200},
    ]  # fmt: skip
    for damage in damaged:
        with pytest.raises(ProtocolError):
            from_plain(damage)


def test_the_digest_and_changes_leave_out_what_is_of_the_moment() -> None:
    before = SelfTest((KEEPS, ROOM), (), 1.0)
    busy = SelfTest((KEEPS, replace(ROOM, value=0, sound=None)), (), 9.0)
    assert before.digest == busy.digest
    assert changed_facts(before, busy) == ()
    other = SelfTest((FLUSHES, ROOM, CUT), (), 1.0)
    assert before.digest != other.digest
    assert changed_facts(before, other) == ((KEEPS, FLUSHES),)
    assert other.loop_bound == 65_535
    assert other.unsound == (CUT, FLUSHES)
    assert other.grave == (CUT,)


def test_a_self_test_is_no_part_of_a_fingerprint_until_it_measures_otherwise() -> None:
    (processor,) = list_processors()
    assert measured_otherwise(processor, "") == processor
    changed = measured_otherwise(processor, "float32 denormals are flushed")
    assert fingerprint(changed) != fingerprint(processor)
    differing = {
        name
        for name, part in fingerprint_parts(changed).items()
        if fingerprint_parts(processor)[name] != part
    }
    assert differing == {"details"}
    assert fingerprint(measured_otherwise(changed, "")) == fingerprint(processor)
