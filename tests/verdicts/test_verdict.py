"""A verdict says as data what it rests on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tapml.verdicts.verdict import (
    Cause,
    Finding,
    OutputNumbers,
    Status,
    Verdict,
    cause_of,
    failed,
    judged_cause,
    not_run,
    severity,
)
from tapml_targets.errors import (
    CompileError,
    DeviceLostError,
    DeviceRestartedError,
    KernelTimeoutError,
    LimitExceededError,
    RemoteError,
)


def numbers(status: Status, **given: Any) -> OutputNumbers:
    """One output of eight elements."""
    fields: dict[str, Any] = {
        "name": "out", "kind": "value", "dtype": "float32", "elements": 8, "status": status,
        "ratio": 9.0, "rms_ratio": 3.0, "reference_ratio": 0.0, "passing": 4.0, "degraded": 16.0,
        "over": 0, "index": (0,), "expected": 1.0, "actual": 2.0, "scale": 0.1,
        "nan_mismatches": 0, "infinity_mismatches": 0, "flushed": 0, "reason": "why",
    }  # fmt: skip
    return OutputNumbers(**fields | given)


@pytest.mark.parametrize(
    ("error", "cause", "is_loss"),
    [
        (DeviceLostError("gone"), Cause.LOST, True),
        (DeviceRestartedError("opened again"), Cause.LOST, True),
        (KernelTimeoutError("no end"), Cause.HANG, True),
        (CompileError("line 3"), Cause.UNBUILT, False),
        (LimitExceededError("too wide"), Cause.LIMIT, False),
        (RemoteError("refused"), Cause.REFUSED, False),
        (OSError("no route"), Cause.REFUSED, False),
    ],
)
def test_an_error_has_a_cause(error: Exception, cause: Cause, is_loss: bool) -> None:
    assert cause_of(error) == cause
    assert cause.is_loss == is_loss


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (numbers("fail", over=3), Cause.WRONG_VALUES),
        (numbers("degraded", over=3), Cause.IMPRECISION),
        (numbers("fail", over=3, dtype="int32"), Cause.WRONG_INTEGERS),
        (numbers("fail", over=2, nan_mismatches=2), Cause.NAN),
        (numbers("fail", over=2, infinity_mismatches=2), Cause.INF),
        (numbers("fail", over=5, nan_mismatches=1, infinity_mismatches=1), Cause.NAN),
        (numbers("degraded"), Cause.DISPUTED),
    ],
)
def test_numbers_have_a_cause(output: OutputNumbers, cause: Cause) -> None:
    assert judged_cause(output.status, [output]) == cause


def test_a_pass_has_none_whatever_its_numbers() -> None:
    assert judged_cause("pass", [numbers("pass")]) == Cause.NONE


def test_findings_and_numbers_are_listed_gravest_first() -> None:
    outputs = (numbers("fail", over=5, nan_mismatches=1),)
    verdict = Verdict("fail", 9.0, outputs, "why", "target", judged_cause("fail", outputs))
    unwritten = Finding(Cause.UNWRITTEN, "1 of 8 elements of out were never written")
    worse = verdict.with_finding("fail", unwritten)
    assert worse.causes == (Cause.UNWRITTEN, Cause.NAN, Cause.WRONG_VALUES)
    assert worse.cause == Cause.UNWRITTEN
    assert worse.reason == f"{unwritten.text}; why"


def test_a_finding_makes_a_test_that_was_not_run_a_failure() -> None:
    verdict = not_run(Cause.NO_TWIN, "no twin").with_finding(
        "fail", Finding(Cause.WRITE_OUTSIDE, "it wrote 4 bytes outside its outputs")
    )
    assert (verdict.status, verdict.cause) == ("fail", Cause.WRITE_OUTSIDE)


def test_a_failure_names_its_cause_and_a_pass_has_none() -> None:
    with pytest.raises(ValueError, match="'fail' cannot have the cause"):
        Verdict("fail", 0.0, (), "why")
    with pytest.raises(ValueError, match="'pass' cannot have the cause"):
        Verdict("pass", 0.0, (), "", cause=Cause.LOST)


def test_it_is_strict_json_with_cause_and_kinds() -> None:
    verdict = failed(Cause.REFUSED, "no").with_finding("fail", Finding(Cause.STALE_READ, "old"))
    plain = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert (plain["cause"], plain["findings"]) == (
        "refused call",
        [{"kind": "stale read", "text": "old"}],
    )
    infinite = Verdict("fail", float("inf"), (), "", "target", Cause.INF).to_json()
    assert infinite["worst_ratio"] == "inf"


def test_what_was_not_run_is_worse_than_a_pass_and_milder_than_any_fault() -> None:
    statuses: list[Status] = ["fail", "not run", "pass", "degraded"]
    assert sorted(statuses, key=severity) == ["pass", "not run", "degraded", "fail"]
