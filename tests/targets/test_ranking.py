"""Devices in order of type and speed, each tried in a process that may die of it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tapml_targets import probe_cache, ranking
from tapml_targets.cpu.driver import list_devices as list_processors
from tapml_targets.description import fingerprint, to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, MismatchError, NoSuchDeviceError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.limits import Limits
from tapml_targets.opencl import discovery
from tapml_targets.opencl.driver import open_device
from tapml_targets.opencl.probe import probe_library
from tapml_targets.probe import try_driver
from tapml_targets.ranking import RankedDevice

FLOATS = Limits(features=frozenset(("float16", "float64")))


def device(index: int, kind: str = "cpu", limits: Limits = FLOATS) -> DeviceDescription:
    return DeviceDescription("opencl", index, f"device {index}", "vendor", kind, "1", limits)


pytestmark = pytest.mark.platforms("opencl")


class Machine:
    """Answers of child processes, given instead of asking real drivers."""

    def __init__(self, devices: list[DeviceDescription], trials: dict[int, Any]) -> None:
        self.devices = devices
        self.trials = trials
        self.asked: list[str] = []

    def ask(
        self, arguments: list[str], seconds: float, *_: Any, slow_hint: str = ""
    ) -> tuple[Any, str]:
        self.asked.append(arguments[0])
        if arguments[0] == "list":
            return {"devices": [to_plain(d) for d in self.devices]}, ""
        trial = self.trials[int(arguments[2])]
        if isinstance(trial, str):
            return None, trial + slow_hint
        tried = fingerprint(self.devices[int(arguments[2])])
        return {"fingerprint": tried, "milliseconds": trial}, ""


@pytest.fixture
def machine(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Four devices of which the third hangs."""
    made = Machine(
        [device(0, "checker"), device(1), device(2, "gpu"), device(3), device(4, "gpu")],
        {0: 0.001, 1: 4.0, 2: "no answer within 30 s", 3: 1.0, 4: 9.0},
    )
    monkeypatch.setattr(ranking, "ask_child", made.ask)
    return made


def indices(ranked: list[RankedDevice]) -> list[int]:
    return [entry.description.index for entry in ranked]


def test_type_comes_first_then_speed_and_what_failed_comes_last(machine: Machine) -> None:
    ranked = ranking.rank_devices("opencl")
    assert indices(ranked) == [4, 3, 1, 0, 2]
    assert [bool(entry.problem) for entry in ranked] == [False] * 4 + [True]
    assert "no answer within 30 s" in ranked[-1].problem


@pytest.mark.parametrize(
    ("times", "order"),
    [
        ((2.9, 1.0, 2.0), [0, 1, 2]),
        ((1.0, 2.0, 2.9), [0, 1, 2]),
        ((9.0, 2.0, 1.0), [1, 2, 0]),
        ((None, 2.0, 1.0), [1, 2, 0]),
        ((None, None, None), [0, 1, 2]),
    ],
    ids=["close", "closer", "one far behind", "one without a time", "none with a time"],
)
def test_devices_of_similar_speed_keep_their_order(
    times: tuple[float | None, ...], order: list[int]
) -> None:
    tried = [RankedDevice(device(index), time) for index, time in enumerate(times)]
    assert indices(ranking.in_order(tried)) == order
    assert indices(ranking.in_order(tried[::-1])) == order


def test_a_simulated_device_comes_behind_every_real_one_and_is_the_default_alone(
    machine: Machine,
) -> None:
    machine.devices = [device(0, "checker"), device(1, "simulated"), device(2), device(3)]
    machine.trials = {0: 0.001, 1: 0.001, 2: 9.0, 3: "no answer within 30 s"}
    assert indices(ranking.rank_devices("opencl")) == [2, 1, 0, 3]
    assert ranking.default_device("opencl").index == 2
    machine.trials[2] = "no answer within 30 s"
    assert ranking.rank_devices("opencl", refresh=True)
    assert ranking.default_device("opencl").device_type == "simulated"


def test_a_device_whose_memory_shrinks_while_it_is_tried_is_the_same_device(
    machine: Machine,
) -> None:
    """PoCL's amount follows what else runs on the machine."""
    ranking.list_devices("opencl")
    less = replace(FLOATS, memory_bytes=1 << 30)
    machine.devices = [replace(each, limits=less) for each in machine.devices]
    assert indices(ranking.rank_devices("opencl")) == [4, 3, 1, 0, 2]
    machine.devices[4] = replace(machine.devices[4], driver_version="2")
    ranked = ranking.rank_devices("opencl", "float16")
    assert "changed while it was tried" in ranked[-1].problem


def test_a_checker_is_never_the_default(machine: Machine) -> None:
    assert ranking.default_device("opencl").index == 4
    machine.trials = {0: 0.001} | dict.fromkeys(range(1, 5), "it crashed")
    ranking.rank_devices("opencl", refresh=True)
    with pytest.raises(NoSuchDeviceError, match="opencl:0 device 0: a checker, used only when"):
        ranking.default_device("opencl")


def test_a_device_without_the_dtype_is_reported(machine: Machine) -> None:
    machine.devices[4] = device(4, "gpu", Limits())
    ranked = ranking.rank_devices("opencl", "float16")
    assert indices(ranked)[0] == 3
    assert {e.problem for e in ranked if e.description.index == 4} == {"it has no float16"}


def test_a_second_ranking_starts_no_process_and_refresh_does(machine: Machine) -> None:
    first = ranking.rank_devices("opencl")
    count = len(machine.asked)
    assert ranking.rank_devices("opencl") == first
    assert len(machine.asked) == count
    ranking.rank_devices("opencl", refresh=True)
    assert len(machine.asked) == 2 * count


def test_a_refresh_tries_left_out_drivers_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifted: list[bool] = []
    monkeypatch.setattr(discovery, "forget_faulty_drivers", lambda: lifted.append(True))
    ranking.rank_devices("opencl")
    assert lifted == []
    ranking.rank_devices("opencl", refresh=True)
    assert lifted == [True]


def test_a_timeout_names_the_variable_for_slow_machines(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = ranking.rank_devices("opencl")[-1]
    assert "TAPML_PROBE_SECONDS=300" in hung.problem


def test_another_driver_version_is_tried_again(machine: Machine) -> None:
    ranking.rank_devices("opencl")
    machine.devices = [replace(d, driver_version="2") for d in machine.devices]
    ranking.list_devices("opencl", refresh=True)
    machine.asked.clear()
    ranking.rank_devices("opencl")
    assert machine.asked.count("try") == 4


def test_a_checker_is_listed_and_not_tried(machine: Machine) -> None:
    (checker,) = (e for e in ranking.rank_devices("opencl") if e.description.index == 0)
    assert (checker.milliseconds, checker.problem) == (None, "")
    assert machine.asked.count("try") == 4


def test_an_old_result_is_not_used(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_cache.store("try", "x", "state", {"milliseconds": 1.0})
    probe_cache.store("try", "y", "state", {"problem": "it hung"})
    assert probe_cache.load("try", "x", "state") == {"milliseconds": 1.0}
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert probe_cache.load("try", "x", "state") is not None
    assert probe_cache.load("try", "y", "state") is None
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    assert probe_cache.load("try", "x", "state") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stored": "x", "value": {}}', '{"value": {}}'])
def test_a_damaged_result_is_not_used(own_cache: Path, text: str) -> None:
    probe_cache.store("try", "x", "state", {"milliseconds": 1.0})
    (file,) = (own_cache / "devices").iterdir()
    file.write_text(text)
    assert probe_cache.load("try", "x", "state") is None


def test_a_damaged_list_is_asked_for_again(machine: Machine, own_cache: Path) -> None:
    ranking.list_devices("opencl")
    (file,) = (own_cache / "devices").iterdir()
    data = json.loads(file.read_text())
    data["value"]["devices"][0]["limits"] = 7
    file.write_text(json.dumps(data))
    assert ranking.list_devices("opencl") == machine.devices


def test_a_device_is_found_by_platform_and_index(machine: Machine) -> None:
    assert ranking.find_device("opencl:1").index == 1
    assert ranking.find_device("opencl").index == 4
    assert ranking.parse_device("opencl:12") == ("opencl", 12)


def test_an_unknown_index_lists_what_there_is(machine: Machine) -> None:
    with pytest.raises(NoSuchDeviceError, match="opencl:0 device 0; opencl:1 device 1"):
        ranking.find_device("opencl:9")


@pytest.mark.parametrize("text", ["opencl:", "opencl:x", "opencl:-1", "opencl:١", "opencl:1:2"])
def test_an_index_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected PLATFORM or PLATFORM:INDEX"):
        ranking.parse_device(text)


def test_an_unknown_platform_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown target .abacus.; known targets: cpu, .*opencl"):
        ranking.rank_devices("abacus")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wgpu", "did you mean 'webgpu'"),
        ("OpenCL", "did you mean 'opencl'"),
        ("browsr", "--device browser, browser:chromium or browser:firefox"),
        ("firefox", "browser:firefox, and its target is webgpu"),
        ("traker", "--device tracker:NAME"),
        ("wss", "an address begins with tcp://, ws:// or wss://"),
        ("sycl", r"known targets: cpu, [^;]*webgpu$"),
    ],
)
def test_a_mistyped_platform_gets_a_suggestion(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ranking.rank_devices(name)


def test_a_dtype_kernels_do_not_compute_in_is_refused() -> None:
    with pytest.raises(InputError, match="not 'int4'"):
        ranking.rank_devices("opencl", "int4")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes choose no processors")
def test_a_process_with_fewer_processors_lists_again(machine: Machine) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one processor")
    ranking.list_devices("opencl")
    os.sched_setaffinity(0, {min(allowed)})
    try:
        ranking.list_devices("opencl")
    finally:
        os.sched_setaffinity(0, allowed)
    ranking.list_devices("opencl")
    assert machine.asked == ["list", "list"]


def test_the_processor_needs_no_trial() -> None:
    (ranked,) = ranking.rank_devices("cpu")
    assert ranked.description == list_processors()[0]
    assert not ranked.problem


def test_real_devices_pass_in_a_child_process(device: DeviceDescription, own_cache: Path) -> None:
    # Amounts of memory and the clock follow what else runs on the machine.
    found = [
        ranked
        for ranked in ranking.rank_devices("opencl")
        if fingerprint(ranked.description) == fingerprint(device)
    ]
    assert found[0].milliseconds is not None
    assert 0 < found[0].milliseconds < 10_000


@pytest.mark.parametrize("dtype", ranking.RANKED_DTYPES)
def test_the_probe_computes_in_each_dtype_a_device_has(
    device: DeviceDescription, dtype: str
) -> None:
    driver = open_device(device)
    if dtype == "float32" or dtype in device.limits.features:
        assert try_driver(driver, probe_library(dtype), dtype).milliseconds > 0
    else:
        with pytest.raises(Exception, match=f"needs {dtype}"):
            LoadedLibrary(driver, probe_library(dtype))
    driver.close()


def test_a_probe_that_computes_wrong_sums_is_refused(device: DeviceDescription) -> None:
    library = probe_library("float32")
    (module,) = library.modules
    wrong = module.code.replace(b"y[convert_int(get_group_id(0))] =", b"y[0] =")
    assert wrong != module.code
    driver = open_device(device)
    with pytest.raises(MismatchError, match="of 1024 sums wrong"):
        try_driver(driver, replace(library, modules=(replace(module, code=wrong),)), "float32")
    driver.close()
