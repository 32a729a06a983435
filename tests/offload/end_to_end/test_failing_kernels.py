"""A kernel that does not build, does not fit or ends its driver; and going on past a wrong one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tapml.plan.graph_plan import GraphPlan
from tapml.repro.script import main as repro_main
from tapml.verdicts.verdict import Cause
from tapml_targets.library import Library
from tapml_targets.target import Target
from tests.offload.commands import run_here
from tests.offload.plants import PLANTS, Plant, edit, plant
from tests.offload.sessions import FinishedSession, read_report, states

OPERATOR = "fused_silu_multiply"
# A fused kernel that does not fit is made again as its steps; one step is not taken apart.
ONE_STEP = "softmax"


@pytest.fixture
def cache_with(
    finished: FinishedSession, tiny_plan: GraphPlan, tiny_target: Target, tmp_path: Path
) -> Callable[..., Path]:
    """A cache in which an operator has another Library."""

    def make(*wrong: Plant) -> Path:
        cache = finished.copy_cache(tmp_path / "cache")
        for each in wrong:
            plant(each, tiny_plan.operators[each.operator], tiny_target, cache)
        return cache

    return make


def _needs_too_many_threads(library: Library) -> Library:
    kernels = {n: structs.replace(k, threads_per_block=1 << 30) for n, k in library.kernels.items()}
    return replace(library, kernels=kernels)


@pytest.mark.parametrize(
    ("operator", "change", "words"),
    [
        (OPERATOR, edit(r"output_0_ptr\[", "outptu_0_ptr["), "outptu_0_ptr"),
        (
            ONE_STEP,
            _needs_too_many_threads,
            "needs max_threads_per_block 1073741824, the device has",
        ),
    ],
    ids=["does not build", "does not fit"],
)
def test_a_kernel_the_device_refuses_stops_at_its_operator(
    finished: FinishedSession,
    cache_with: Callable[..., Path],
    tmp_path: Path,
    operator: str,
    change: Callable[[Library], Library],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = tmp_path / "session"
    cache = cache_with(Plant(operator, "", change, words))
    ended = run_here(*finished.arguments(session), cache=cache)
    assert ended.exit_code == 1
    (line,) = (line for line in ended.output.splitlines() if line.startswith("failed: "))
    assert line.startswith(f"failed: {operator}: ")
    assert words in line
    assert states(session)[operator] == "failed"
    repro = session / "repro" / operator
    assert words in (repro / "failure.json").read_text(encoding="utf-8")
    assert "__kernel" in (repro / "kernels" / "00.cl").read_text(encoding="utf-8")
    assert repro_main(repro, []) == 1
    (verdict, *_, last) = capsys.readouterr().out.splitlines()
    assert verdict.startswith(f"fail: {operator} on ")
    assert last == "the same as when it was written"


def test_a_kernel_that_ends_the_driver_is_named(
    finished: FinishedSession,
    cache_with: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = tmp_path / "session"
    crash = edit(r"(__kernel void [^;{]*\{)", r"\1 *(volatile __global int*)8 = 1;")
    cache = cache_with(Plant(OPERATOR, "mlp", crash, ""))
    ended = run_here(*finished.arguments(session), cache=cache)
    assert ended.exit_code == 4
    (line, *_) = ended.error_lines
    assert f"while {OPERATOR!r} was tried: " in line
    assert f"--keep-on-source {OPERATOR}" in line
    assert f"continue with `tapml offload --session {session}`" in line
    assert states(session)[OPERATOR] == "failed"
    capsys.readouterr()
    assert repro_main(session / "repro" / OPERATOR, []) == 4
    (verdict, same) = capsys.readouterr().out.splitlines()
    assert verdict.startswith("fail: ") and ": the device was lost: " in verdict
    assert same == "the same as when it was written"
    around = ("offload", "--session", session, "--keep-on-source", OPERATOR)
    assert run_here(*around, cache=cache).exit_code == 0
    assert states(session)[OPERATOR] == "kept"


def test_two_wrong_kernels_are_both_found_where_asked_to_keep_going(
    finished: FinishedSession,
    tiny_plan: GraphPlan,
    cache_with: Callable[..., Path],
    tmp_path: Path,
) -> None:
    session = tmp_path / "session"
    wrong = (PLANTS["index"], PLANTS["swapped arguments"])
    names = {each.operator for each in wrong}
    cache = cache_with(*wrong)
    ended = run_here(*finished.arguments(session), "--keep-going", cache=cache)
    assert ended.exit_code == 1
    found = states(session)
    assert {name for name, state in found.items() if state == "failed"} == names
    assert set(found.values()) == {"failed", "moved"}
    report = read_report(session)
    assert report["summary"]["failed_operators"] == [
        name for name in tiny_plan.operators if name in names
    ]
    assert report["final"] is None
    assert not (session / "finished" / "library.msgpack").exists()
    refused = run_here("run", session, "--tokens", "1 2", cache=cache)
    assert refused.exit_code == 2
    assert "not every operator is on the target" in refused.errors

    # Nothing changed: what was found out stands, and nothing is replayed or looked into again.
    again = run_here("offload", "--session", session, "--keep-going", cache=cache)
    assert again.exit_code == 1
    standing = read_report(session)
    assert standing["verdicts"]["kept"] == len(found)
    assert standing["strategy"]["model_runs"] == 0
    for before, now in zip(report["operators"], standing["operators"], strict=True):
        for key in ("state", "reason", "diagnosis", "repro"):
            assert now[key] == before[key], (now["name"], key)


def test_a_budget_that_leaves_operators_untested_is_said_and_no_kernel_offered(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = tmp_path / "session"
    ended = run_here(*finished.arguments(session), "--budget", "1K", cache=finished.cache)
    assert ended.exit_code == 1
    noted = re.search(r"note: the budget leaves (\d+) operators without a test.*", ended.errors)
    assert noted is not None
    left_out = int(noted[1])
    assert "(--restart)" in noted[0]
    operators = read_report(session)["operators"]
    failed = next(each for each in operators if each["state"] == "failed")
    assert (failed["cause"], failed["tests"]["total"]) == (Cause.NO_TEST, 0)
    assert "next: a kernel without tests cannot be judged" in ended.output
    page = (session / "repro" / failed["name"] / "README.txt").read_text()
    assert "no test of it was carved" in page
    assert sum(each["state"] == "moved" for each in operators) <= len(operators) - left_out
