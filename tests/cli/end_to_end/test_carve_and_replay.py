"""``tapml carve`` and ``tapml replay``: tests without a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tapml.plan.graph_plan import GraphPlan
from tapml.suite.suite import Suite
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.plants import PLANTS, plant
from tests.offload.sessions import FinishedSession

TOKENS = ("--tokens", "1 2 3 4", "--new-tokens", "2")
A_TEST = "prefill/layers.0.mlp/fused_silu_multiply@p0.s0"


@pytest.fixture(scope="module")
def suite(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("carved") / "suite"
    ended = run_here(
        "carve", "--model", finished.model, "--out", out, *TOKENS, cache=finished.cache
    )
    assert ended.exit_code == 0, ended.errors
    assert ended.output.endswith(f"suite: {out}\n")
    tests = sum(each["tests"]["total"] for each in finished.report["operators"])
    assert ended.output.startswith(f"{tests} tests of ")
    return out


def test_a_carved_suite_passes_on_a_device(finished: FinishedSession, suite: Path) -> None:
    ended = run_here("replay", suite, "--device", finished.device, cache=finished.cache)
    assert ended.exit_code == 0, ended.output
    operators = finished.report["summary"]["operators"]
    assert ended.output.endswith(f"of {operators} operators: all pass\n")
    assert ended.output.count("\npass  ") + ended.output.startswith("pass  ") == operators


def test_a_replay_is_json_too_and_takes_filters(finished: FinishedSession, suite: Path) -> None:
    ended = run_here(
        "replay", suite, "--device", finished.device, "--json", "--operator", "*softmax*",
        cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0
    replayed = json.loads(ended.output)
    assert replayed["format"] == "tapml-replay/2"
    verdicts = replayed["operators"]
    assert {each["status"] for each in verdicts} == {"pass"}
    assert [each["operator"] for each in verdicts] == ["softmax", "softmax_2"]


def test_a_filter_that_leaves_nothing_is_no_pass(finished: FinishedSession, suite: Path) -> None:
    for option in ("--repeats", "3"), ("--check",), ("--explain", A_TEST):
        ended = run_here(
            "replay", suite, *option, "--device", finished.device, "--operator", "conv*",
            cache=finished.cache,
        )  # fmt: skip
        assert ended.exit_code == 2
        assert "no test of" in ended.error_lines[0]
        assert "softmax_2" in ended.error_lines[0]


def test_a_mistyped_operator_gets_the_names_like_it(finished: FinishedSession, suite: Path) -> None:
    ended = run_here("replay", suite, "--operator", "softmx", cache=finished.cache)
    assert ended.exit_code == 2
    assert "did you mean 'softmax'" in ended.error_lines[0]


def test_an_option_without_effect_is_refused(
    finished: FinishedSession, suite: Path, tmp_path: Path
) -> None:
    for option in ("--explain",), ("--repro", tmp_path), ("--diagnose",), ("--repeats", "3"):
        ended = run_here("replay", suite, "--check", *option, cache=finished.cache)
        assert ended.exit_code == 2
        assert f"{option[0]} has no effect with --check" in ended.error_lines[0]


def test_a_suite_of_a_device_gives_the_verdicts_of_the_processors(
    finished: FinishedSession,
    suite: Path,
    tiny_plan: GraphPlan,
    tiny_target: Target,
    require_device: RequireDevice,
    tmp_path: Path,
) -> None:
    target = f"vulkan:{min(each.index for each in require_device('vulkan'))}"
    carved = tmp_path / "carved"
    carve = ("carve", "--model", finished.model, "--reference", finished.device, *TOKENS)
    ended = run_here(*carve, "--out", carved, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert f"recorded on {finished.device} (" in ended.output
    with Suite.open(suite) as processors, Suite.open(carved) as devices:
        assert [each.id for each in devices.tests()] == [each.id for each in processors.tests()]
        assert devices.reference.startswith(finished.device)
        assert processors.reference == "cpu"
        assert devices.reference_identity != processors.reference_identity == ""
    found = []
    for recorded in (suite, carved):
        ended = run_here(
            "replay", recorded, "--device", target, "--json", "--operator", "*softmax*",
            cache=finished.cache,
        )  # fmt: skip
        verdicts = json.loads(ended.output)["operators"]
        found.append([(each["operator"], each["status"]) for each in verdicts])
    assert found[0] == found[1] == [("softmax", "pass"), ("softmax_2", "pass")]
    # With a wrong kernel the same device is no reference, and the operator is named.
    wrong, cache = PLANTS["swapped arguments"], finished.copy_cache(tmp_path / "cache")
    plant(wrong, tiny_plan.operators[wrong.operator], tiny_target, cache)
    ended = run_here(*carve, "--out", tmp_path / "wrong", cache=cache)
    assert ended.exit_code == 1
    assert f"the reference {finished.device} (" in ended.error_lines[0]
    assert f"  {wrong.operator} at " in ended.errors
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    ("reference", "code", "says"),
    [
        ("nosuch", 2, "unknown target 'nosuch'"),
        ("opencl:99", 3, "--reference opencl:99: there is no device 'opencl:99'"),
    ],
)
def test_a_reference_that_is_not_there_is_one_line(
    finished: FinishedSession, tmp_path: Path, reference: str, code: int, says: str
) -> None:
    for command in (("carve", "--out"), ("offload", "--session")):
        ended = run_here(
            *command, tmp_path / command[0], "--model", finished.model, "--reference", reference,
            cache=finished.cache,
        )  # fmt: skip
        assert ended.exit_code == code
        (line,) = ended.error_lines
        assert says in line


def test_what_is_carved_can_be_narrowed(finished: FinishedSession, tmp_path: Path) -> None:
    out = tmp_path / "suite"
    arguments = ("carve", "--model", finished.model, "--out", out, *TOKENS, "--quiet")
    ended = run_here(*arguments, "--operator", "*softmax*", "--entry", "decode",
                     cache=finished.cache)  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    assert ended.output.startswith("1 test of 1 operator")
    again = run_here(*arguments, cache=finished.cache)
    assert again.exit_code == 2
    assert "--overwrite" in again.error_lines[0]


def test_a_budget_too_small_for_every_operator_says_so(
    finished: FinishedSession, tmp_path: Path
) -> None:
    ended = run_here(
        "carve", "--model", finished.model, "--out", tmp_path / "suite", *TOKENS, "--quiet",
        "--budget", "1K", "--operator", "*softmax*", cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.errors
    assert "the budget leaves 2 operators without a test: softmax, softmax_2" in ended.output


@pytest.mark.parametrize("part", [".", "suite"])
def test_a_sessions_own_suite_can_be_replayed(finished: FinishedSession, part: str) -> None:
    ended = run_here(
        "replay", finished.folder / part, "--device", finished.device, "--operator", "*rms_norm*",
        cache=finished.cache,
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output + ended.errors


def test_one_verdict_is_explained(finished: FinishedSession, suite: Path) -> None:
    where = ("replay", suite, "--device", finished.device, "--explain")
    ended = run_here(*where, A_TEST, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert ended.output.startswith("fused_silu_multiply: pass\n")
    assert "sensitivity + ulp" in ended.output
    unknown = run_here(*where, "prefill/fused_silu_multiply@p9.s9", cache=finished.cache)
    assert unknown.exit_code == 2
    assert "has no test" in unknown.errors
    mistyped = run_here(*where, A_TEST.replace("silu", "slu"), cache=finished.cache)
    assert f"did you mean {A_TEST!r}?" in mistyped.errors
    unnamed = run_here(*where, cache=finished.cache)
    assert unnamed.exit_code == 2
    assert "tapml inspect" in unnamed.errors
