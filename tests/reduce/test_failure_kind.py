"""The causes of a failure follow from what real wrong kernels do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapml.compiler.reference import compile_reference
from tapml.reduce.device import ReopeningDevice
from tapml.reduce.failure_kind import failure_causes, same_failure
from tapml.reduce.trials import Candidate, Trials
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Finding, Verdict
from tapml_targets.library import CodeModule, Library
from tests.compiler.operators import matmul_transposed
from tests.reduce.planted import inputs, library
from tests.replaying.replay_kernels import (
    linear_case,
    linear_library,
    linear_operator,
    workspace_library,
)


def verdict_of(device: ReopeningDevice, wrong: Library) -> Verdict:
    operator = linear_operator()
    trials = Trials(operator, wrong, Policy(), device)
    case = linear_case(operator, compile_reference([operator]))
    result = trials.run(Candidate(tuple(case.read_inputs()), {}))
    assert result is not None
    return result.verdict


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("reduction start", "wrong values"),
        ("missing guard", "write outside"),
        ("write before", "write outside"),
        ("stale output", "unwritten output"),
        ("input changed", "changed input"),
        ("unsafe NaN", "NaN"),
    ],
)
def test_what_a_wrong_kernel_does_has_a_kind(
    device: ReopeningDevice, wrong: str, kind: str
) -> None:
    assert failure_causes(verdict_of(device, linear_library(linear_operator(), wrong)))[0] == kind


def test_a_workspace_that_is_overrun_is_a_write_outside(device: ReopeningDevice) -> None:
    verdict = verdict_of(device, workspace_library(linear_operator(), 8))
    assert failure_causes(verdict) == ("write outside",)


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("out[i] = as_int(out[i]) == 0x5a5a5a5a ? sum : sum + 1.0f;", "stale read"),
        ("out[i] = as_int(x[-1]) == 0x5a5a5a5a ? sum : sum + 1.0f;", "read outside"),
    ],
)
def test_what_a_result_hangs_on_has_a_kind(device: ReopeningDevice, store: str, kind: str) -> None:
    right = linear_library(linear_operator())
    code = right.modules[0].code.decode().replace("out[i] = sum;", store).encode()
    wrong = replace(right, modules=(CodeModule("opencl-c", code),))
    assert failure_causes(verdict_of(device, wrong))[0] == kind


def test_two_work_items_that_race_are_nondeterminism() -> None:
    # A race does not happen on demand.
    race = Finding(Cause.NONDETERMINISM, "3 elements differ between runs")
    verdict = Verdict("pass", 0.0, (), "").with_finding("degraded", race)
    assert (verdict.status, failure_causes(verdict)) == ("degraded", (Cause.NONDETERMINISM,))


def test_a_right_kernel_has_none(device: ReopeningDevice) -> None:
    verdict = verdict_of(device, linear_library(linear_operator()))
    assert failure_causes(verdict) == ()
    assert not same_failure(verdict, verdict)


def test_another_kind_is_not_the_same_failure(device: ReopeningDevice) -> None:
    wrong, outside = (
        verdict_of(device, linear_library(linear_operator(), each))
        for each in ("reduction start", "missing guard")
    )
    assert same_failure(wrong, wrong)
    assert same_failure(outside, outside)
    assert not same_failure(outside, wrong)
    assert not same_failure(wrong, outside)
    assert not same_failure(wrong, replace(wrong, status="degraded"))


def test_a_call_that_is_refused_has_a_kind(device: ReopeningDevice) -> None:
    good = library("right")
    kernel = good.modules[0].code.replace(b"int n)", b"int n, int m)")
    refused = replace(good, modules=(CodeModule("opencl-c", kernel),))
    result = Trials(matmul_transposed(), refused, Policy(), device).run(Candidate(inputs(2), {}))
    assert result is not None
    assert failure_causes(result.verdict) == ("refused call",)
