"""The self-test runs in a process that may hang or die of it, and is remembered."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tapml_targets.cpu.driver import list_devices as list_processors
from tapml_targets.description import fingerprint, fingerprint_parts, measured_otherwise
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError
from tapml_targets.self_test import known
from tapml_targets.self_test.facts import Fact, SelfTest, changed_facts, from_plain, to_plain
from tapml_targets.self_test.known import self_test

pytestmark = pytest.mark.platforms("opencl")

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
def drivers(own_cache: Path, monkeypatch: pytest.MonkeyPatch, device: DeviceDescription) -> Drivers:
    made = Drivers(device)
    monkeypatch.setattr(known, "ask_child", made.ask)
    return made


def test_a_real_device_is_asked_once_and_remembered(
    own_cache: Path, device: DeviceDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert self_test(device, policy="cached-only") is None
    first = self_test(device)
    assert first is not None and first.problems == ()
    monkeypatch.setattr(known, "ask_child", None)
    assert self_test(device) == first
    assert self_test(device, policy="cached-only") == first


def test_a_part_that_crashes_the_driver_is_named(drivers: Drivers) -> None:
    drivers.fatal = {"float64": "the driver ended the process with signal SIGSEGV"}
    found = self_test(drivers.device)
    assert found is not None
    assert found.problems == ("float64: the driver ended the process with signal SIGSEGV",)
    assert found.fact("core") is not None
    assert found.fact("float64") is None


def test_a_part_that_hangs_is_named_and_soon_tried_again(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers.fatal = {"core": "no answer within 30 s"}
    found = self_test(drivers.device)
    assert found is not None
    assert "core: no answer within 30 s" in found.problems
    drivers.fatal.clear()
    assert self_test(drivers.device) == found
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    found = self_test(drivers.device)
    assert found is not None and found.problems == ()


def test_policy_run_measures_again_and_a_new_driver_is_a_new_device(drivers: Drivers) -> None:
    self_test(drivers.device)
    self_test(drivers.device, policy="run")
    assert len(drivers.asked) == 2
    drivers.device = replace(drivers.device, driver_version="another")
    self_test(drivers.device)
    assert len(drivers.asked) == 3


def test_a_checker_is_tested_only_when_asked_to(drivers: Drivers) -> None:
    drivers.device = replace(drivers.device, device_type="checker")
    assert self_test(drivers.device) is None
    assert drivers.asked == []
    assert self_test(drivers.device, policy="run") is not None
    assert self_test(drivers.device) is not None


def test_a_real_child_that_has_no_such_device_says_so(
    own_cache: Path, device: DeviceDescription
) -> None:
    found = self_test(replace(device, index=999))
    assert found is not None
    assert found.facts == ()
    assert "IndexError" in found.problems[0]


def test_a_platform_without_kernels_is_asked_for_its_buffers(own_cache: Path) -> None:
    (processor,) = list_processors()
    found = self_test(processor)
    assert found is not None
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


def test_the_digest_and_changes_ignore_temporary_facts() -> None:
    before = SelfTest((KEEPS, ROOM), (), 1.0)
    busy = SelfTest((KEEPS, replace(ROOM, value=0, sound=None)), (), 9.0)
    assert before.digest == busy.digest
    assert changed_facts(before, busy) == ()
    other = SelfTest((FLUSHES, ROOM, CUT), (), 1.0)
    assert before.digest != other.digest
    assert changed_facts(before, other) == ((KEEPS, FLUSHES),)
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
