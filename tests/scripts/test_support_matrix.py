"""The support matrix: three operators on one device, its three forms, and what a cell says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.support_matrix import Case, _key, _outcome, main
from scripts.support_operators import OPERATORS as KNOWN
from scripts.support_pages import Outcome
from tapml.importing import cache as importing
from tapml.matrix.report import Cell
from tapml.verdicts.verdict import Cause
from tapml_targets.driver import DeviceDescription
from tapml_targets.ranking import RankedDevice
from tests.conftest import RequireDevice

PASSED = Cell("pass", 0.5, 1, "", Cause.NONE)
OPERATORS = ["softmax", "matrix product", "largest"]


@pytest.fixture
def pocl(require_device: RequireDevice) -> DeviceDescription:
    return require_device("opencl", vendor="Portable Computing Language")[0]


def test_operators_on_one_device_are_replayed_once_and_then_known(
    pocl: DeviceDescription,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PoCL 3.1 has no float16."""
    files = [f"--{form}={tmp_path / form}" for form in ("markdown", "json", "page")]
    device = f"opencl:{pocl.index}"
    command = ["--devices", device, "--folder", str(tmp_path / "kept"), *files, "--operators"]
    assert main([*command, *OPERATORS[:2]]) == 0
    first = json.loads((tmp_path / "json").read_text())["cells"]
    found = {(c["operator"], c["dtype"], c["shapes"]): c for c in first}
    assert len(found) == 2 * 4
    for shapes in ("static", "dynamic"):
        for name in OPERATORS[:2]:
            assert found[name, "float32", shapes]["support"] == "pass"
            assert found[name, "float16", shapes]["support"] == "refused by limit"
            assert 0 < found[name, "float32", shapes]["worst_ratio"] < 50
    assert "| softmax | `pp rr` |" in (tmp_path / "markdown").read_text()
    assert '"text":"refused by limit"' in (tmp_path / "page").read_text()
    capsys.readouterr()
    # What is known needs no time; the rest is not begun.
    assert main([*command, *OPERATORS, "--minutes", "0"]) == 1, "what is not run is no success"
    again = json.loads((tmp_path / "json").read_text())["cells"]
    assert [c for c in again if c["operator"] != "largest"] == first
    reasons = {c["reason"] for c in again if c["operator"] == "largest"}
    assert reasons == {"the time given was over"}
    assert "| largest | `-- --` |" in (tmp_path / "markdown").read_text()
    # With another importer that makes the same operators and kernels, no test is run again.
    with monkeypatch.context() as patch:
        patch.setattr(importing, "importer_hash", lambda: "another importer")
        patch.setattr("tapml.matrix.running.Matrix.operator", None)
        assert main([*command, OPERATORS[0]]) == 0
    cells = json.loads((tmp_path / "json").read_text())["cells"]
    same = [c for c in first if c["operator"] == OPERATORS[0]]
    assert [c | {"version": ""} for c in cells] == [c | {"version": ""} for c in same]
    assert {c["version"] for c in cells}.isdisjoint(c["version"] for c in same)
    assert main([*command, *OPERATORS, "--minutes", "0"]) == 1
    # Columns and operators that are not made now come from an earlier file, and are called older.
    earlier = json.loads((tmp_path / "json").read_text())
    earlier["devices"][0]["device"] = "vulkan:0"
    for cell in earlier["cells"]:
        cell["device"] = "vulkan:0"
    (tmp_path / "earlier").write_text(json.dumps(earlier))
    assert main([*command, OPERATORS[0], "--earlier", str(tmp_path / "earlier")]) == 1
    page = (tmp_path / "markdown").read_text()
    assert "| softmax | `pp rr` | `pp rr` |" in page
    assert "| largest | `-- --` | `-- --` |" in page
    older = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in page.splitlines()
             if line.startswith(("| opencl:", "| vulkan:"))}  # fmt: skip
    assert older == {device: "0", "vulkan:0": "8"}
    made = json.loads((tmp_path / "json").read_text())["cells"]
    assert {bool(each.get("version")) for each in made if each["support"] != "not run"} == {True}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--operators", "nosuch"], "no operator is like nosuch"),
        (["--devices", "nosuch"], "there is no device of nosuch"),
        (["--earlier", "nosuch.json"], "nosuch.json: expected a matrix that --json wrote"),
    ],
)
def test_what_is_not_there_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_case_is_what_its_gravest_operator_is(pocl: DeviceDescription) -> None:
    real = RankedDevice(pocl, None)
    wrong = Cell("fail", 900.0, 1, "worst error\nat [0]", Cause.WRONG_VALUES)
    assert _outcome([PASSED, wrong], real, "float32") == Outcome(
        "fail", "worst error at [0]", 900.0
    )
    too_large = Cell("fail", 0.0, 0, "too many threads", Cause.LIMIT)
    assert _outcome([PASSED, too_large], real, "float32").support == "refused by limit"
    unprinted = Cell("fail", 0.0, 0, "no such node", Cause.NO_KERNEL)
    assert _outcome([unprinted], real, "float32").support == "fail"
    assert _outcome([unprinted], real, "float16").support == "refused by limit"


def test_a_cell_depends_on_the_importer(
    pocl: DeviceDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, device = Case(KNOWN[0], "float32", "static"), RankedDevice(pocl, None)
    before = _key(case, device)
    assert _key(case, device) == before
    monkeypatch.setattr(importing, "importer_hash", lambda: "another importer")
    assert _key(case, device).hash != before.hash


def test_a_pass_on_a_simulator_is_never_called_a_pass(pocl: DeviceDescription) -> None:
    simulated = RankedDevice(replace(pocl, device_type="simulated"), None)
    assert _outcome([PASSED], simulated, "float32").support == "simulated"
