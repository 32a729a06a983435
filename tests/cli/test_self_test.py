"""``tapml devices`` and ``tapml doctor`` show what each device was measured to do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tapml.cli import devices, doctor
from tapml.cli.main import main
from tapml_targets.ranking import rank_devices
from tapml_targets.self_test import known
from tapml_targets.self_test.facts import SelfTest
from tapml_targets.self_test.known import self_test
from tests.conftest import RequireDevice


def test_every_fact_is_in_the_json(
    require_device: RequireDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = {f"opencl:{device.index}": device for device in require_device("opencl")}
    assert main(["devices", "--platform", "opencl", "--json"]) == 0
    rows = {row["spec"]: row for row in json.loads(capsys.readouterr().out)["devices"]}
    for spec, device in specs.items():
        found = rows[spec]["self_test"]
        known_test = self_test(device)
        assert known_test is not None and found["digest"] == known_test.digest
        assert "no float16" in found["traits"] or "float16" in device.limits.features
        assert {"name", "value", "expected", "sound", "meaning"} <= found["facts"][0].keys()


def test_the_table_says_what_is_known_in_a_line(
    require_device: RequireDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    device, *_ = require_device("opencl")
    found = self_test(device)
    assert found is not None
    assert main(["devices", "--platform", "opencl"]) == 0
    assert f"self-test: {', '.join(found.traits)}" in capsys.readouterr().out.replace("\n", "")


def test_a_grave_finding_is_a_problem_of_the_device_with_a_remedy(
    require_device: RequireDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, *_ = require_device("opencl")
    (ranked,) = (r for r in rank_devices("opencl") if r.description.index == device.index)
    sound = self_test(device)
    assert sound is not None
    assert doctor._self_test("opencl", ranked).status == "ok"
    facts = tuple(
        replace(fact, value=65_535, sound=False, meaning="loops are cut short")
        if fact.name == "loop_iterations"
        else fact
        for fact in sound.facts
    )
    cut = SelfTest(facts, ("float64: it hung",))
    monkeypatch.setattr(known, "self_test", lambda *_: cut)
    check = doctor._self_test("opencl", ranked)
    assert check.status == "problem"
    assert check.found == "loops are cut short; float64: it hung"
    assert "docs/devices.md" in check.remedy


def test_a_device_that_fails_its_probe_is_not_asked(require_device: RequireDevice) -> None:
    require_device("opencl")
    ranked = replace(rank_devices("opencl")[0], problem="it crashed")
    assert devices._self_test(ranked, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("named", "looked_at"), [([], ["base", "this", "that"]), (["that"], ["base", "that"])]
)
def test_the_doctor_looks_at_what_is_named_and_at_everything_where_nothing_is(
    named: list[str],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sound(group: str) -> doctor.Check:
        return doctor.Check(group, "device", "ok", "there")

    groups = {name: lambda name=name: iter([sound(name)]) for name in ("base", "this", "that")}
    monkeypatch.setattr(doctor, "GROUPS", groups)
    assert main(["doctor", "--json", *named]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["group"] for check in checks] == looked_at
