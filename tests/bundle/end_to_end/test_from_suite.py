"""Bundles of a real model's suite: a passing test, a failing one, and one without the model."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tapml.bundle.bundle import read_bundle
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.target import Target
from tests.offload.commands import run_here
from tests.offload.plants import PLANTS, plant
from tests.offload.sessions import FinishedSession

TEST = "decode/layers.0.self_attn/softmax_2@p0.s1"


def test_a_passing_test_is_bundled_where_it_is_named(
    finished: FinishedSession, tmp_path: Path
) -> None:
    archive = tmp_path / "softmax.tapml.zip"
    arguments = ("bundle", finished.folder / "suite", "--test", TEST)
    device = ("--device", finished.device)
    assert run_here(*arguments, *device, "-o", archive, cache=finished.cache).exit_code == 0
    repro = read_bundle(archive)
    assert (repro.case.id, repro.status) == (TEST, "pass")
    ended = run_here("replay", archive, *device, cache=finished.cache)
    assert (ended.exit_code, ended.output.partition(":")[0]) == (0, "pass")


def test_a_suite_alone_does_not_say_which_operator(
    finished: FinishedSession, tmp_path: Path
) -> None:
    ended = run_here("bundle", finished.folder, "-o", tmp_path / "out", cache=finished.cache)
    assert ended.exit_code == 2
    assert "name an operator (--operator) or a test (--test)" in ended.errors
    ended = run_here("bundle", finished.folder, "--operator", "none*", cache=finished.cache)
    assert ended.exit_code == 2
    assert "has no test of 'none*'" in ended.errors


def test_a_failing_operator_of_a_model_is_bundled_without_the_model(
    finished: FinishedSession, tiny_plan: GraphPlan, tiny_target: Target, tmp_path: Path
) -> None:
    wrong = PLANTS["missing guard"]
    cache = finished.copy_cache(tmp_path / "cache")
    plant(wrong, tiny_plan.operators[wrong.operator], tiny_target, cache)
    out = tmp_path / "out"
    out.mkdir()
    ended = run_here(
        "bundle", finished.folder, "--operator", wrong.operator, "--device", finished.device,
        "--synthetic", "-o", out, cache=cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    assert "fail like the original (write outside)" in ended.output
    archive = out / f"{wrong.operator}.tapml.zip"
    repro = read_bundle(archive)
    assert repro.status == "fail"
    assert repro.definition is not None
    assert repro.definition.body is not None
    assert repro.origins == ()
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            data = file.read(name)
            for secret in (b"layers.0", b"mlp", b"llama", b"transformers", b"p0.s0"):
                assert secret not in data, name
    assert run_here("replay", archive, "--device", finished.device, cache=cache).exit_code == 1
