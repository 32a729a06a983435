"""``tapml validate``: a verdict for every operator, and nothing kept."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pytest

from tapml.cli import validate
from tapml.cli.several_devices import print_matrix
from tapml.matrix.implementation import Column, Implementation
from tapml.matrix.report import MatrixReport
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.errors import EXIT_NO_DEVICE, InputError, SetupError
from tapml_targets.target import Target
from tests.models.folders import make_folder
from tests.offload.commands import run_here
from tests.offload.plants import PLANTS, plant
from tests.offload.sessions import FinishedSession
from tests.offload.warm_cache import warm_cache

TOKENS = ("--tokens", "1 2 3 4", "--new-tokens", "2")


def test_every_operator_is_tried_past_a_wrong_one(
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = PLANTS["reduction start"]
    cache = finished.copy_cache(tmp_path / "cache")
    plant(wrong, tiny_plan.operators[wrong.operator], tiny_target, cache)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    ended = run_here(
        "validate", "--model", finished.model, "--device", finished.device, *TOKENS, "--quiet",
        cache=cache,
    )  # fmt: skip
    assert ended.exit_code == 1
    lines = ended.output.splitlines()
    passed = [line for line in lines if line.split()[1:2] == ["pass"]]
    assert len(passed) == len(tiny_plan.operators) - 1
    failed = next(line for line in lines if line.startswith(f"{wrong.operator} on "))
    assert wrong.says in failed
    assert lines[-1].startswith("fail: ")
    assert list(temporary.iterdir()) == []


def test_it_is_json_too(finished: FinishedSession) -> None:
    ended = run_here(
        "validate", "--model", finished.model, "--device", finished.device, *TOKENS, "--quiet",
        "--json", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    assert json.loads(ended.output)["status"] == "pass"


@pytest.mark.parametrize("against", ["reference", "bandwidth"])
def test_operators_beyond_the_bound_on_slowness_fail_by_name(
    finished: FinishedSession, against: str
) -> None:
    """The whole model is validated either way; with a bound that all keep it passes."""
    arguments = (
        "validate", "--model", finished.model, "--device", finished.device, *TOKENS, "--quiet",
        "--slow-against", against, "--json", "--max-slowdown",
    )  # fmt: skip
    slow = json.loads(run_here(*arguments, "1e-9", cache=finished.cache).output)
    assert (slow["status"], slow["end_to_end"]["cells"][finished.device]["status"]) == (
        "fail", "pass",
    )  # fmt: skip
    cells = [row["cells"][finished.device] for row in slow["operators"]]
    said = "the reference's" if against == "reference" else "GB/s"
    assert {(cell["status"], cell["cause"]) for cell in cells} == {("fail", "too slow")}
    assert all(
        said in cell["reason"] and "--max-slowdown allows 1e-09 times" in cell["reason"]
        for cell in cells
    )
    ended = run_here(*arguments, "1e9", cache=finished.cache)
    assert (ended.exit_code, json.loads(ended.output)["status"]) == (0, "pass")


def test_several_devices_stand_side_by_side_and_one_that_is_not_there_is_not_run(
    finished: FinishedSession, tmp_path: Path
) -> None:
    page = tmp_path / "matrix.html"
    ended = run_here(
        "validate", "--model", finished.model, "--device", finished.device, "--device", "opencl:77",
        *TOKENS, "--json", "--report", page, cache=finished.cache,
    )  # fmt: skip
    # Nothing is wrong but that a device is not there.
    assert ended.exit_code == EXIT_NO_DEVICE, ended.errors
    found = json.loads(ended.output)
    here, dead = found["implementations"]
    assert (here["label"], here["status"]) == (finished.device, "pass")
    assert (dead["label"], dead["status"]) == ("opencl:77", "not run")
    assert "opencl:77" in dead["problem"]
    whole = found["end_to_end"]["cells"]
    assert [whole[each]["status"] for each in (finished.device, "opencl:77")] == ["pass", "not run"]
    assert found["status"] == "not run" and not found["passed"]
    assert "opencl:77" in page.read_text("utf-8")


def test_a_suite_is_replayed_on_several_devices(finished: FinishedSession) -> None:
    ended = run_here(
        "replay", finished.folder, "--device", finished.device, "--device", "cpu",
        "--operator", "*softmax*", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output + ended.errors
    assert "nothing to compare: each has a different platform" in ended.output.splitlines()[-1]
    head = next(line for line in ended.output.splitlines() if line.startswith("operator"))
    assert head.split()[1:3] == [finished.device, "cpu"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--target", "opencl"), "--target has no effect on several devices"),
        (("--device", "cpu"), "name each once"),
        (("--device", "opnecl:0"), "opnecl"),
        (("--device", "opencl:one"), "such as opencl:0, got 'opencl:one'"),
    ],
)
def test_what_several_devices_cannot_take_is_said_at_once(
    arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    devices = ("--device", "cpu", "--device", "opencl:0")
    ended = run_here("validate", *devices, *arguments, cache=tmp_path)
    assert ended.exit_code == 2
    assert says in ended.errors


def test_no_open_holds_for_each_of_several_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def instead(devices: list[str], *_: object) -> list[Column]:
        asked.append(devices)
        raise InputError("asked")

    monkeypatch.setattr(validate, "columns_for", instead)
    devices = ("--device", "browser", "--device", "webgpu:0", "--device", "browser:headless")
    assert run_here("validate", *devices, "--no-open", cache=tmp_path).exit_code == 2
    assert asked == [["browser:wait", "webgpu:0", "browser:headless"]]


def test_a_page_that_cannot_be_written_takes_nothing_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = MatrixReport("a model", "cpu", (Implementation("cpu", "cpu"),), ())
    (tmp_path / "file").write_text("")
    given = argparse.Namespace(report=tmp_path / "file" / "matrix.html", json=False)
    with pytest.raises(SetupError, match=r"matrix\.html"):
        print_matrix(report, given)
    assert "a model on cpu" in capsys.readouterr().out


def test_a_text_is_run_on_the_device_beside_the_reference(
    finished: FinishedSession, tmp_path: Path
) -> None:
    model = make_folder(tmp_path / "model", tokenizer=True)
    text = tmp_path / "text.txt"
    text.write_text("The value of the attribute is returned as a string. " * 4, encoding="utf-8")
    ended = run_here(
        "validate", "--model", model, "--device", finished.device, "--context", "24", "--quiet",
        "--text", text, "--text-tokens", "30", "--json", cache=warm_cache(tmp_path / "cache"),
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    found = json.loads(ended.output)
    assert (found["status"], found["tokens"], found["windows"]) == ("pass", 30, 2)
    assert found["perplexity"] == pytest.approx(found["reference_perplexity"], rel=1e-4)
    assert 0 <= found["mean_kl"] < 1e-6
    assert found["top1"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--text", "missing.txt"), "missing.txt: No such file"),
        (("--text-tokens", "5"), "--text-tokens has no effect without --text"),
        (("--text", __file__, "--report", "page.html"), "--report has no effect with --text"),
        (("--text", __file__, "--device", "opencl:0", "--device", "opencl:1"), "one --device"),
    ],
)
def test_a_text_that_cannot_be_used_is_one_line(
    arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    ended = run_here("validate", *arguments, cache=tmp_path)
    assert ended.exit_code == 2
    (line,) = ended.error_lines
    assert says in line
