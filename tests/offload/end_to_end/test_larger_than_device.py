"""A model larger than its device: operators one after the other, the whole model not at all."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml_targets.dtype import dtype
from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession, read_report

# Room for the largest operator at the longest input, and not for the weights of the model.
BOUND = 215_000


@pytest.mark.parametrize("strategy", ["one-by-one", "bisect"])
def test_every_operator_is_validated_within_the_memory_and_the_whole_model_is_not_run(
    finished: FinishedSession, tiny_plan: GraphPlan, tmp_path: Path, strategy: str
) -> None:
    weights = sum(dtype(w.dtype).nbytes(prod(w.shape)) for w in tiny_plan.weights.values())
    assert weights > BOUND
    session = tmp_path / "session"
    ended = run_here(
        *finished.arguments(session), "--device-memory", str(BOUND), "--strategy", strategy,
        cache=finished.cache,
    )  # fmt: skip
    report = read_report(session)
    operators = report["operators"]
    assert ended.exit_code == 1, ended.errors
    assert all(o["tests"]["passed"] == o["tests"]["total"] > 0 for o in operators)
    assert all(o["replay"]["status"] == "pass" for o in operators)

    memory = report["strategy"]["memory"]
    assert 0 < memory["peak"] <= memory["limit"] == BOUND

    by_state = {o["state"]: o for o in operators}
    assert set(by_state) == {"moved", "validated"}, "the model runs with what fits"
    left = by_state["validated"]
    assert left["model_check"]["status"] == "not run"
    assert f"(weights {weights}, " in report["outcome"]["text"]
    assert f" has {BOUND}" in left["reason"]

    assert report["outcome"]["status"] == report["final"]["status"] == "not run"
    assert "the complete model was not run: it needs " in report["outcome"]["text"]
    assert ended.output.startswith(f"not run: {len(operators)} of {len(operators)} operators pass ")
    assert not (session / "finished" / "library.msgpack").exists()

    # With the memory that the device has, only what was not run is.
    ended = run_here("offload", "--session", session, cache=finished.cache)
    report = read_report(session)
    assert ended.exit_code == 0, ended.errors
    assert report["outcome"]["status"] == "pass"
    assert report["verdicts"]["kept"] == len(operators)
    assert report["strategy"]["model_runs"] <= len(operators)


def test_what_passed_with_more_memory_is_not_run_with_less_and_stands_again_with_more(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    before = finished.report["operators"]
    kept = before[-1]["name"]
    ended = run_here(
        "offload", "--session", session, "--device-memory", str(BOUND), "--keep-on-source", kept,
        cache=finished.cache,
    )  # fmt: skip
    report = read_report(session)
    assert ended.exit_code == 1, "a hybrid model that does not fit has not passed"
    assert report["outcome"]["status"] == "not run"
    left = [o for o in report["operators"] if o["state"] == "validated"]
    assert left
    assert all(f" has {BOUND}" in o["reason"] for o in left)
    assert f"--device-memory {BOUND}" in ended.output.splitlines()[-1]

    ended = run_here("offload", "--session", session, cache=finished.cache)
    report = read_report(session)
    assert ended.exit_code == 0, ended.errors
    assert report["strategy"]["model_runs"] == 0, "what had passed was not forgotten"


def test_a_device_that_is_too_small_for_an_operator_is_said_to_be(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here("offload", "--session", session, "--device-memory", "4K", cache=finished.cache)
    assert ended.exit_code == 1, ended.errors
    failed = next(o for o in read_report(session)["operators"] if o["state"] == "failed")
    lack = next(each for each in failed["lacks"] if each["device"])
    assert lack["limit"] in {"memory_bytes", "max_buffer_bytes"}
    assert (int(lack["need"]) > 4096, lack["has"]) == (True, "4096")
    last = ended.output.splitlines()[-1]
    assert last.startswith("next: `python ")
    assert "the device is too small" in last
    assert f"--keep-on-source {failed['name']}" in last
    assert "tapml kernel" not in last
