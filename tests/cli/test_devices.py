"""``tapml devices`` where a driver cannot even be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tapml.cli.conformance import _print
from tapml.devices.conformance import conformance_over
from tapml_rpc.client import connect
from tapml_targets.conformance.running import CaseResult
from tapml_targets.errors import SetupError
from tests.conftest import RequireDevice
from tests.offload.commands import run_process
from tests.rpc.peers import ServerProcess

# PoCL asserts that the folder it is given has a name.
CRASHING = {"POCL_CACHE_DIR": ""}


def test_a_driver_that_is_left_out_is_named_with_what_it_did_and_what_to_do(
    require_device: RequireDevice, tmp_path: Path
) -> None:
    require_device("opencl", vendor="Portable")
    listing = ("devices", "--platform", "opencl")
    for _ in ("asked", "remembered"):
        said = run_process(*listing, cache=tmp_path, **CRASHING).output
        assert "opencl, the driver of pocl.icd: left out for a day" in said
        assert "SIGABRT" in said and "`tapml devices --probe`" in said
    ended = run_process(*listing, "--json", cache=tmp_path, **CRASHING)
    left_out = json.loads(ended.output)["left_out"]
    assert {platform: list(drivers) for platform, drivers in left_out.items()} == {
        "opencl": ["pocl.icd"]
    }
    # Without what made it crash it is there again, at once.
    found = json.loads(run_process(*listing, "--json", cache=tmp_path).output)
    assert not found["left_out"]
    assert any("Portable" in device["vendor_platform"] for device in found["devices"])


def test_the_conformance_cases_are_a_table_and_json(tmp_path: Path) -> None:
    ended = run_process("devices", "--test", "--platform", "cpu", "--json", cache=tmp_path)
    assert ended.exit_code == 0, ended.errors
    said = json.loads(ended.output)
    assert said["format"] == "tapml-conformance/1"
    statuses = {each["case"]: each["status"] for each in said["devices"]["cpu:0"]}
    assert statuses["bytes at odd offsets"] == "pass"
    assert statuses["grids above 65535"] == "not run"
    assert "fail" not in statuses.values()
    shown = run_process("devices", "--test", "--platform", "cpu", cache=tmp_path).output
    assert "cpu:0: grids above 65535: not run: kernels run once, without a grid" in shown
    assert f"cpu:0: 18 of {len(statuses)} cases pass" in shown


def test_cases_keep_their_names_beside_more_devices_than_a_terminal_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    case = "modules that are not the devices"
    specs = [f"opencl:{index}" for index in range(9)]
    _print({spec: [CaseResult(case, "pass")] for spec in specs}, {})
    lines = capsys.readouterr().out.splitlines()
    assert sum(case in line for line in lines) == 3
    assert " ".join(line for line in lines if line.startswith("case")).count("opencl:") == 9


def test_a_device_behind_a_server_is_tested_over_the_wire(tmp_path: Path) -> None:
    """Machine code is taken only where the server's owner said so."""
    with ServerProcess("--allow-shared-libraries", device="cpu:0") as server:
        ended = run_process(
            "devices", "--test", "--device", server.address, "--json", cache=tmp_path
        )
    assert ended.exit_code == 0, ended.output + ended.errors
    cases = json.loads(ended.output)["devices"][server.address]
    not_run = {each["case"] for each in cases if each["status"] != "pass"}
    assert not_run == {"misaligned windows", "guard bands", "grids above 65535", "another device"}


def test_a_server_that_takes_no_machine_code_cannot_be_tested() -> None:
    with (
        ServerProcess(device="cpu:0") as server,
        connect(server.address) as session,
        pytest.raises(SetupError, match="start it with --allow-shared-libraries"),
    ):
        conformance_over(session)


def test_a_device_for_the_cases_must_be_there_and_needs_them(tmp_path: Path) -> None:
    gone = run_process("devices", "--test", "--device", "vulkan:77", cache=tmp_path)
    assert gone.exit_code == 3 and "vulkan:77: " in gone.output
    malformed = run_process("devices", "--test", "--device", "tcp://board:x", cache=tmp_path)
    assert malformed.exit_code == 2 and "'x' is not a port from 1 to 65535" in malformed.output
    alone = run_process("devices", "--device", "cpu:0", cache=tmp_path)
    assert alone.exit_code == 2 and "add --test" in alone.errors
