"""``tapml diff`` on what the real commands wrote: two drivers, and a replay that became worse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.plants import PLANTS, plant
from tests.offload.sessions import FinishedSession

OPERATOR = "fused_silu_multiply"


def replayed(finished: FinishedSession, out: Path, device: str, cache: Path) -> Path:
    """A replay's JSON in a file."""
    ended = run_here(
        "replay", finished.folder, "--device", device, "--operator", "*silu*", "--json",
        cache=cache,
    )  # fmt: skip
    out.write_text(ended.output)
    return out


@pytest.fixture
def before(finished: FinishedSession, tmp_path: Path) -> Path:
    return replayed(finished, tmp_path / "before.json", finished.device, finished.cache)


def test_another_driver_that_is_right_opens_the_gate(
    finished: FinishedSession, before: Path, tmp_path: Path, require_device: RequireDevice
) -> None:
    devices = [
        *require_device("opencl", vendor="Portable"),
        *require_device("opencl", vendor="Intel"),
    ]
    other = next(
        f"opencl:{each.index}" for each in devices if f"opencl:{each.index}" != finished.device
    )
    after = replayed(finished, tmp_path / "after.json", other, finished.cache)
    ended = run_here("diff", before, after, cache=finished.cache)
    assert ended.exit_code == 0, ended.output
    assert "driver" in ended.output
    assert ended.output.endswith("2 operators: no status changed\n")


def test_a_kernel_that_became_wrong_closes_it(
    finished: FinishedSession,
    before: Path,
    tmp_path: Path,
    tiny_plan: GraphPlan,
    tiny_target: Target,
) -> None:
    cache = finished.copy_cache(tmp_path / "cache")
    plant(PLANTS["missing guard"], tiny_plan.operators[OPERATOR], tiny_target, cache)
    after = replayed(finished, tmp_path / "after.json", finished.device, cache)
    ended = run_here("diff", before, after, cache=cache)
    assert ended.exit_code == 1
    lines = ended.output.splitlines()
    assert any(line.split()[:2] == ["worse", OPERATOR] for line in lines)
    assert any(line.startswith(f"{OPERATOR}: ") and "outside its outputs" in line for line in lines)
    assert "1 worse" in lines[-1]
    plain = json.loads(run_here("diff", before, after, "--json", cache=cache).output)
    assert plain["worse"] is True
    assert [each["operator"]["name"] for each in plain["operators"]] == [OPERATOR]
    back = run_here("diff", after, before, cache=cache)
    assert back.exit_code == 0
    assert "1 better" in back.output


def test_a_session_is_held_against_a_session(finished: FinishedSession, tmp_path: Path) -> None:
    same = run_here("diff", finished.folder, finished.folder, cache=finished.cache)
    assert same.exit_code == 0
    assert same.output.endswith("operators: no status changed\n")
    copy = finished.copy(tmp_path / "copy")
    report = json.loads((copy / "report.json").read_text())
    report["operators"][0] |= {"state": "failed", "reason": "it does not build"}
    (copy / "report.json").write_text(json.dumps(report))
    worse = run_here("diff", finished.folder, copy, cache=finished.cache)
    assert worse.exit_code == 1
    assert "it does not build" in worse.output


@pytest.mark.parametrize("factor", ["0.5", "nan", "inf", "x"])
def test_a_factor_is_a_number_of_at_least_one(
    finished: FinishedSession, before: Path, factor: str
) -> None:
    ended = run_here("diff", before, before, "--factor", factor, cache=finished.cache)
    assert ended.exit_code == 2
    assert "expected a number of at least 1" in ended.errors
