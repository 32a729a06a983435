"""A kernel is tried as the session would try it; whatever it does costs that look alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tapml.kernels.sample_tests import choose, work_of
from tapml.kernels.session_facts import read_facts
from tapml.kernels.trial import KernelTrial
from tapml.kernels.trial_result import TrialResult
from tapml.runs.lock import RunLock
from tapml_targets.errors import InputError
from tests.kernels.sessions import OPERATOR, KernelSession

BODY = ") {\n"


@pytest.fixture(scope="module")
def trial(kernel_session: KernelSession) -> Iterator[KernelTrial]:
    """One trial whose server and suite stay open."""
    with KernelTrial(read_facts(kernel_session.folder), OPERATOR, deadline_seconds=4) as opened:
        yield opened


def look(trial: KernelTrial, session: KernelSession, old: str, new: str) -> TrialResult:
    """A look at the kernel with its source changed, which is put right again."""
    right = session.source.read_text()
    assert old in right
    session.source.write_text(right.replace(old, new))
    try:
        return trial.look(choose(trial.tests, 4))
    finally:
        session.source.write_text(right)


def test_a_new_kernel_passes_at_once(kernel_session: KernelSession) -> None:
    ended = kernel_session.kernel("check", OPERATOR)
    assert ended.exit_code == 0, ended.errors
    verdict, times = ended.output.splitlines()[1:]
    assert verdict.startswith("pass  ")
    assert " tests  " in verdict
    assert "one call takes " in times
    assert ", compiled " in times
    assert ", reference " in times


def test_the_verdict_is_the_sessions(kernel_session: KernelSession, trial: KernelTrial) -> None:
    result = trial.look(trial.probing.tests(trial.operator, trial.tests))
    last = read_facts(kernel_session.folder).last_verdict(OPERATOR)
    assert last is not None
    assert result.outcome == last.status
    assert result.worst_ratio == pytest.approx(last.worst_ratio)
    assert result.tests == result.of == len(trial.tests)


def test_a_wrong_kernel_fails_with_its_numbers(
    kernel_session: KernelSession, trial: KernelTrial
) -> None:
    result = look(trial, kernel_session, "/ sqrt(", "* 1.01f / sqrt(")
    assert result.outcome == "fail"
    assert result.worst_ratio is not None
    assert result.worst_ratio > 100
    assert "worst error at output_0[" in result.reason


def test_a_kernel_that_writes_nothing_is_told_so(
    kernel_session: KernelSession, trial: KernelTrial
) -> None:
    result = look(trial, kernel_session, BODY, f"{BODY}  return;\n")
    assert result.outcome == "fail"
    assert "of output_0 were never written" in result.reason


def test_compiler_text_names_the_developers_line(
    kernel_session: KernelSession, trial: KernelTrial
) -> None:
    result = look(trial, kernel_session, BODY, f"{BODY}  flot x = 1;\n")
    line = kernel_session.source.read_text().partition(BODY)[0].count("\n") + 2
    assert result.outcome == "does not build"
    assert f"{kernel_session.source}:{line}:" in result.reason
    assert "flot x = 1;" in result.reason


def test_of_several_sources_the_guilty_one_is_named(
    kernel_session: KernelSession, trial: KernelTrial
) -> None:
    right = kernel_session.manifest.read_text()
    other = kernel_session.place / "more.cl"
    other.write_text("__kernel void more(__global float* output_0) {\n  oops;\n}\n")
    kernel_session.manifest.write_text(
        f'{right}\n[[launches]]\nentry = "more"\nsource = "more.cl"\narguments = ["output_0"]\n'
    )
    try:
        result = trial.look(trial.tests[:1])
    finally:
        kernel_session.manifest.write_text(right)
        other.unlink()
    assert result.outcome == "does not build"
    assert f"{other}:2:3: error" in result.reason


def test_a_manifest_that_does_not_fit_is_a_result(
    kernel_session: KernelSession, trial: KernelTrial
) -> None:
    right = kernel_session.manifest.read_text()
    kernel_session.manifest.write_text(right.replace("block = ", "blokc = "))
    result = trial.look(trial.tests[:1])
    kernel_session.manifest.write_text(right)
    assert result.outcome == "does not fit"
    assert "did you mean 'block'?" in result.reason


def test_a_kernel_that_takes_the_driver_down_costs_a_server_and_not_the_trial(
    kernel_session: KernelSession, trial: KernelTrial
) -> None:
    result = look(trial, kernel_session, BODY, f"{BODY}  *(volatile __global float*)64 = 1;\n")
    assert result.outcome == "device lost"
    assert trial.look(trial.tests[:2]).outcome == "pass"


@pytest.mark.parametrize(
    ("old", "new", "exit_code", "words"),
    [
        (BODY, f"{BODY}  return;\n", 1, "fail  "),
        (BODY, f"{BODY}  return\n", 2, "does not build"),
    ],
)
def test_exit_codes_tell_what_came_of_it(
    kernel_session: KernelSession, old: str, new: str, exit_code: int, words: str
) -> None:
    right = kernel_session.source.read_text()
    kernel_session.source.write_text(right.replace(old, new))
    ended = kernel_session.kernel("check", OPERATOR, "--tests", "1", "--json")
    kernel_session.source.write_text(right)
    assert ended.exit_code == exit_code
    data = json.loads(ended.output)
    assert data["outcome"] == words.strip()
    assert data["of"] >= data["tests"]


def test_a_check_writes_nothing_but_the_oracles_cache_and_needs_no_lock(
    kernel_session: KernelSession,
) -> None:
    def contents() -> dict[Path, str]:
        return {
            path: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in kernel_session.folder.rglob("*")
            if path.is_file() and not path.name.startswith("oracle.sqlite")
        }

    with RunLock(kernel_session.folder / "lock").hold():
        before = contents()
        ended = kernel_session.kernel("check", OPERATOR, "--tests", "1")
        after = contents()
    assert ended.exit_code == 0
    assert before == after


def test_without_a_kernel_the_command_to_begin_with_is_named(
    kernel_session: KernelSession,
) -> None:
    ended = kernel_session.kernel("check", "softmax")
    assert ended.exit_code == 2
    assert f"`tapml kernel new {kernel_session.folder} softmax`" in ended.errors


def test_a_target_of_machine_code_takes_no_kernel(kernel_session: KernelSession) -> None:
    facts = read_facts(kernel_session.folder)
    moved = replace(facts, settings=structs.replace(facts.settings, target="cpu"))
    with pytest.raises(InputError, match="'cpu' loads machine code, so it takes no hand-written"):
        KernelTrial(moved, OPERATOR, device="cpu:0")


def test_the_list_says_where_kernels_lie_and_which_verdicts_are_theirs(
    kernel_session: KernelSession,
) -> None:
    stray = kernel_session.folder / "kernels" / "sotfmax" / "opencl"
    stray.mkdir(parents=True)
    (stray / "kernel.toml").write_text("")
    listed = json.loads(kernel_session.kernel("list", "--json").output)
    lines = kernel_session.kernel("list").output
    (stray / "kernel.toml").unlink()
    own, other = listed
    assert (own["operator"], own["folder"]) == (OPERATOR, str(kernel_session.place))
    # The session's verdict was on the compiled kernel.
    assert (own["current"], own["last"]["status"]) == (False, "pass")
    assert "the session has no such operator" in other["problem"]
    assert "not tried yet; another kernel: pass" in lines


def test_a_quick_look_has_every_shape(trial: KernelTrial) -> None:
    chosen = choose(trial.tests, 3)
    assert len(chosen) == min(3, len(trial.tests))
    assert chosen[0].id == trial.tests[0].id
    assert {work_of(test) for test in choose(trial.tests, len(trial.tests))} == {
        work_of(test) for test in trial.tests
    }
