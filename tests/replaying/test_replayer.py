"""Replays on a real device: right kernels pass, planted wrong ones are found and named."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from tapml.compiler.reference import compile_reference
from tapml.compiler.reference_module import ReferenceModule
from tapml.compiler.twin import compile_twins
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import Operator
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.replayer import ReplayResult, replay, replay_operator
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.picture import picture
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_rpc.transport import CallResult, PendingCall
from tapml_targets.errors import CompileError, DeviceLostError, InputError
from tapml_targets.library import CodeModule, launches
from tests.conftest import RequireDevice
from tests.oracles.cases import MemoryCase
from tests.replaying.replay_kernels import (
    COLUMNS,
    ROWS,
    TERMS,
    WRONG,
    linear_case,
    linear_library,
    linear_operator,
    with_store,
    workspace_library,
)
from tests.rpc.test_faults import process_of

POLICY = Policy()


@pytest.fixture(scope="module")
def operator() -> Operator:
    return linear_operator()


@pytest.fixture(scope="module")
def reference(operator: Operator) -> ReferenceModule:
    return compile_reference([operator])


@pytest.fixture(scope="module")
def oracle(operator: Operator) -> Iterator[Oracle]:
    with Oracle({"linear": operator}, compile_twins, POLICY) as made:
        yield made


@pytest.fixture(scope="module")
def session(require_device: RequireDevice) -> Iterator[Session]:
    require_device("opencl")
    with open_local("opencl") as opened:
        yield opened


@pytest.fixture
def case(operator: Operator, reference: ReferenceModule) -> MemoryCase:
    return linear_case(operator, reference)


def test_a_right_kernel_passes(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    result = replay(operator, case, linear_library(operator), session, oracle, POLICY)
    assert result.verdict.status == "pass", result.verdict.reason
    assert result.verdict.worst_ratio < 8
    assert result.verdict.findings == ()
    assert result.timing.kernel is not None
    assert 0 < result.timing.kernel < result.timing.device
    assert result.actual == ()


def test_a_first_run_that_waited_does_not_count_as_the_kernels_time(
    operator: Operator,
    case: MemoryCase,
    session: Session,
    oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device's own report of its first run says ten seconds."""
    took, waited = PendingCall.result, []

    def result(self: PendingCall) -> CallResult:
        report = took(self)
        waited.append(self)
        return replace(report, kernel_nanoseconds=10**10) if self is waited[0] else report

    monkeypatch.setattr(PendingCall, "result", result)
    timing = replay(operator, case, linear_library(operator), session, oracle, POLICY).timing
    assert timing.kernel is not None
    assert 0 < timing.kernel < 10


@pytest.mark.parametrize("wrong", [*WRONG, "swapped arguments"])
def test_a_planted_wrong_kernel_fails(
    wrong: str, operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    result = replay(operator, case, linear_library(operator, wrong), session, oracle, POLICY)
    assert result.verdict.status == "fail", result.verdict
    assert result.verdict.suspect == "target"
    assert len(result.actual) == 1


@pytest.mark.parametrize(
    ("wrong", "kind", "finding"),
    [
        (
            "stale output",
            Cause.UNWRITTEN,
            r"5 of 420 elements of p2 .* first at \[6, 55\]",
        ),
        ("missing guard", Cause.WRITE_OUTSIDE, r"wrote 11\d bytes outside its outputs, after p2"),
        ("write before", Cause.WRITE_OUTSIDE, r"wrote 4 bytes outside its outputs, before p2"),
        ("input changed", Cause.CHANGED_INPUT, r"changed \d+ bytes of its input p0"),
    ],
)
def test_what_memory_shows_is_said(
    wrong: str,
    kind: Cause,
    finding: str,
    operator: Operator,
    case: MemoryCase,
    session: Session,
    oracle: Oracle,
) -> None:
    result = replay(operator, case, linear_library(operator, wrong), session, oracle, POLICY)
    assert re.search(finding, result.verdict.reason), result.verdict.reason
    assert [each.kind for each in result.verdict.findings] == [kind]
    assert result.verdict.cause == kind


def test_a_workspace_overrun_is_found(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    fine = replay(operator, case, workspace_library(operator, 0), session, oracle, POLICY)
    assert fine.verdict.status == "pass", fine.verdict.reason
    overrun = replay(operator, case, workspace_library(operator, 9), session, oracle, POLICY)
    assert overrun.verdict.status == "fail"
    assert overrun.verdict.cause == Cause.WRITE_OUTSIDE
    assert "outside its workspaces space" in overrun.verdict.reason


@pytest.mark.parametrize(
    ("read", "cause"),
    [
        ("out[i]", Cause.STALE_READ),
        ("space[i]", Cause.STALE_READ),
        (f"space[{ROWS * COLUMNS} + i]", Cause.STALE_READ),
        (f"x[{ROWS * TERMS} + i]", Cause.READ_OUTSIDE),
        ("x[-1]", Cause.READ_OUTSIDE),
        (f"w[{TERMS * COLUMNS} + i]", Cause.READ_OUTSIDE),
        ("w[-1 - i]", Cause.READ_OUTSIDE),
    ],
)
def test_a_kernel_that_reads_what_it_may_not_fails_though_its_numbers_are_right(
    read: str,
    cause: Cause,
    operator: Operator,
    case: MemoryCase,
    session: Session,
    oracle: Oracle,
) -> None:
    """It adds a trifle where the poison is a number: within tolerance, but not the same twice."""
    trifle = f"({read} > 1.0f ? 1e-7f : 0.0f) * (fabs(sum) + 1.0f)"
    library = with_store(workspace_library(operator, 0), f"out[i] = sum + {trifle}; space[i] = 0;")
    result = replay(operator, case, library, session, oracle, POLICY)
    assert result.verdict.status == "fail", result.verdict
    assert result.verdict.cause == cause
    assert result.verdict.worst_ratio < 32


@pytest.fixture(params=["whole", "in parts"])
def weights_travel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of the tests is a large one, too, which is sent and read back in parts."""
    if request.param == "in parts":
        monkeypatch.setattr("tapml.replaying.memory._LARGE_BYTES", 8192)


@pytest.mark.usefixtures("weights_travel")
def test_weights_are_poisoned_again_for_each_of_many_tests(
    operator: Operator, reference: ReferenceModule, session: Session, oracle: Oracle
) -> None:
    trifle = f"(w[{TERMS * COLUMNS} + i] > 1.0f ? 1e-7f : 0.0f) * (fabs(sum) + 1.0f)"
    wrong = with_store(workspace_library(operator, 0), f"out[i] = sum + {trifle}; space[i] = 0;")
    cases = [linear_case(operator, reference, seed=i, name=f"linear@{i}") for i in range(3)]
    same = [replace(each, arrays=(each.arrays[0], cases[0].arrays[1])) for each in cases]
    with ReplayMemory(session) as memory:
        for each in same:
            result = replay(operator, each, wrong, session, oracle, POLICY, memory=memory)
            assert result.verdict.cause == Cause.READ_OUTSIDE
        assert memory.changed_weights() == ()


# Memory behind the guard bands that no run touches, and no run may: it counts the runs.
_RUNS_SO_FAR = "((__global int*)x)[10000 + i]"


@pytest.mark.parametrize(("first", "runs", "status"), [(1, 2, "degraded"), (2, 2, "pass"),
                                                       (2, 5, "degraded")])  # fmt: skip
def test_a_kernel_whose_runs_differ_by_themselves_is_degraded_once_it_ran_often_enough(
    first: int,
    runs: int,
    status: str,
    operator: Operator,
    case: MemoryCase,
    session: Session,
    oracle: Oracle,
) -> None:
    """From run number `first` on it adds a trifle."""
    changed = with_store(
        linear_library(operator),
        f"out[i] = sum + ({_RUNS_SO_FAR} >= {first} ? 1e-7f : 0.0f) * (fabs(sum) + 1.0f); "
        f"{_RUNS_SO_FAR} += 1;",
    )
    with ReplayMemory(session) as memory:
        session.fill(memory.arena_buffer("read", 1 << 16), b"\0")
        result = replay(operator, case, changed, session, oracle, POLICY, memory=memory, runs=runs)
    assert result.verdict.status == status, result.verdict
    cause = Cause.NONE if status == "pass" else Cause.NONDETERMINISM
    assert result.verdict.cause == cause


def test_a_wrong_kernel_does_not_spoil_the_tests_after_it(
    operator: Operator, reference: ReferenceModule, session: Session, oracle: Oracle
) -> None:
    cases = [linear_case(operator, reference, seed=i, name=f"linear@{i}") for i in range(3)]
    with ReplayMemory(session) as memory:
        for wrong in ("missing guard", "input changed", ""):
            library = linear_library(operator, wrong)
            verdict = replay_operator(
                operator, cases, library, session, oracle, POLICY, memory=memory
            )
            assert verdict.status == ("fail" if wrong else "pass"), verdict.reason


def test_an_operators_verdict_counts_its_tests_and_keeps_the_gravest(
    operator: Operator, reference: ReferenceModule, session: Session, oracle: Oracle
) -> None:
    cases = [linear_case(operator, reference, seed=i, name=f"linear@{i}") for i in range(4)]
    seen: list[ReplayResult] = []
    verdict = replay_operator(
        operator, cases, linear_library(operator), session, oracle, POLICY, on_result=seen.append
    )
    assert (verdict.status, verdict.counts["pass"]) == ("pass", 4)
    assert [result.test for result in seen] == [case.id for case in cases]
    assert verdict.worst is not None
    assert verdict.worst_ratio == max(r.verdict.worst_ratio for r in verdict.results)
    wrong = linear_library(operator, "reduction start")
    verdict = replay_operator(operator, cases, wrong, session, oracle, POLICY, stop_after=2)
    assert (verdict.status, verdict.counts["fail"], len(verdict.results)) == ("fail", 2, 2)
    assert verdict.worst is not None
    assert len(verdict.worst.actual) == 1
    assert "linear@" in verdict.reason


def test_the_outputs_of_one_passing_test_are_kept_to_be_drawn(
    operator: Operator, reference: ReferenceModule, session: Session, oracle: Oracle
) -> None:
    cases = [linear_case(operator, reference, seed=i, name=f"linear@{i}") for i in range(3)]
    library = linear_library(operator)
    verdict = replay_operator(operator, cases, library, session, oracle, POLICY)
    assert verdict.worst is not None
    drawn = picture(verdict.worst, oracle.expect(verdict.worst.case))
    counts = drawn["histogram"]
    assert drawn["test"] == verdict.worst.test
    assert counts["over"] == 0
    elements = verdict.worst.verdict.outputs[0].elements
    assert counts["zero"] + sum(number for _, number, _ in counts["decades"]) == elements
    assert [result.actual for result in verdict.results] == [()] * 3
    verdict = replay_operator(operator, cases, library, session, oracle, POLICY, keep_passing=False)
    assert verdict.worst is not None
    assert verdict.worst.actual == ()


def test_an_operator_without_tests_is_not_run(
    operator: Operator, session: Session, oracle: Oracle
) -> None:
    verdict = replay_operator(operator, [], linear_library(operator), session, oracle, POLICY)
    assert verdict.status == "not run"


def test_a_weight_travels_once(
    operator: Operator, reference: ReferenceModule, session: Session, oracle: Oracle
) -> None:
    case = linear_case(operator, reference)
    other = replace(case, id="other", arrays=(case.arrays[0] + 1, case.arrays[1]))
    results = np.zeros_like(case.results[0])
    reference["linear"](*other.arrays, results)
    other = replace(other, results=(results,))
    with ReplayMemory(session) as memory:
        library = session.upload(linear_library(operator))
        uploaded = []
        for each in (case, other, case):
            result = replay(operator, each, library, session, oracle, POLICY, memory=memory)
            assert result.verdict.status == "pass"
            uploaded.append(memory.uploaded_bytes)
        assert uploaded[0] > case.arrays[1].nbytes
        assert uploaded == uploaded[:1] * 3
        assert memory.changed_weights() == ()


@pytest.mark.usefixtures("weights_travel")
@pytest.mark.parametrize("place", [-1, 0, 3599, 3600])
def test_a_kernel_that_writes_to_a_weight_or_around_it_fails(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle, place: int
) -> None:
    library = linear_library(operator)
    source = library.modules[0].code.replace(b"const float* w", b"float* w")
    source = source.replace(
        b"out[i] = sum;", f"out[i] = sum; if (i == 7) w[{place}] = 0.0f;".encode()
    )
    changed = replace(library, modules=(CodeModule("opencl-c", source),))
    verdict = replay_operator(operator, [case], changed, session, oracle, POLICY)
    assert verdict.status == "fail"
    assert verdict.cause == Cause.CHANGED_INPUT
    assert "wrote to 1 weights" in verdict.reason


def test_a_changed_weight_is_noticed_though_there_is_no_room_to_keep_it(
    operator: Operator,
    reference: ReferenceModule,
    session: Session,
    oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tapml.replaying.memory._KEPT_WEIGHT_BYTES", 1)
    library = linear_library(operator)
    source = library.modules[0].code.replace(b"const float* w", b"float* w")
    changed = with_store(
        replace(library, modules=(CodeModule("opencl-c", source),)),
        "out[i] = sum; if (i == 7 && x[0] > 0.125f) w[3599] = 0.0f;",
    )
    cases = [linear_case(operator, reference, seed=i, name=f"linear@{i}") for i in range(3)]
    assert [bool(case.arrays[0].flat[0] > 0.125) for case in cases] == [True, True, True]
    harmless = replace(cases[2], arrays=(0 * cases[2].arrays[0], cases[2].arrays[1]))
    with ReplayMemory(session) as memory:
        for case in (cases[0], harmless, replace(harmless, id="again")):
            replay(operator, case, changed, session, oracle, POLICY, memory=memory)
        assert len(memory.changed_weights()) == 1


def test_a_library_that_does_not_build_or_lacks_the_operator_is_an_error(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    library = linear_library(operator)
    broken = replace(library, modules=(CodeModule("opencl-c", b"__kernel void linear( {"),))
    with pytest.raises(CompileError):
        replay(operator, case, broken, session, oracle, POLICY)
    other = replace(operator, name="unknown")
    with pytest.raises(InputError, match="no operator 'unknown'; it has linear"):
        replay(other, case, library, session, oracle, POLICY)
    assert replay(operator, case, library, session, oracle, POLICY).verdict.status == "pass"


def test_a_call_the_device_refuses_is_a_failure_and_the_next_test_runs(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    library = linear_library(operator)
    program = library.operators["linear"]
    parameters = (structs.replace(program.parameters[0], shape=(7, 61)), *program.parameters[1:])
    refused = replace(
        library, operators={"linear": structs.replace(program, parameters=parameters)}
    )
    result = replay(operator, case, refused, session, oracle, POLICY)
    assert result.verdict.status == "fail"
    assert result.verdict.cause == Cause.REFUSED
    assert replay(operator, case, library, session, oracle, POLICY).verdict.status == "pass"


def test_a_replay_is_one_round_trip_and_quick(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    """A loose bound against a loop or a second round trip creeping in; the bench has the bar."""
    library = session.upload(linear_library(operator))
    with ReplayMemory(session) as memory:
        replay(operator, case, library, session, oracle, POLICY, memory=memory)
        times = []
        for _ in range(20):
            started = time.perf_counter()
            replay(operator, case, library, session, oracle, POLICY, memory=memory)
            times.append(time.perf_counter() - started)
    assert min(times) < 0.25


def test_after_a_failure_weights_are_sent_again(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    """A failed command poisons its session: the weight's allocation is skipped, too."""
    library = session.upload(linear_library(operator))
    with ReplayMemory(session) as memory:
        too_much = session.allocate(1 << 60)
        poisoned = replay(operator, case, library, session, oracle, POLICY, memory=memory)
        assert poisoned.verdict.status == "fail"
        session.free(too_much)
        fine = replay(operator, case, library, session, oracle, POLICY, memory=memory)
        assert fine.verdict.status == "pass", fine.verdict.reason
        assert memory.changed_weights() == ()


def test_a_kernel_that_asks_for_too_much_fails_and_the_next_operator_passes(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    library = workspace_library(operator, 0)
    program = library.operators["linear"]
    workspaces = (structs.replace(program.workspaces[0], nbytes=1 << 60),)
    greedy = replace(library, operators={"linear": structs.replace(program, workspaces=workspaces)})
    with ReplayMemory(session) as memory:
        for each, status in ((greedy, "fail"), (linear_library(operator), "pass")):
            verdict = replay_operator(
                operator, [case], each, session, oracle, POLICY, memory=memory
            )
            assert verdict.status == status, verdict.reason


def test_a_launch_beyond_the_limits_fails_and_the_next_test_runs(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    library = linear_library(operator)
    program = library.operators["linear"]
    (launch,) = launches(program.statements)
    wide = structs.replace(program, statements=(structs.replace(launch, block=(1 << 20, 1, 1)),))
    refused = replay(
        operator,
        case,
        replace(library, operators={"linear": wide}),
        session,
        oracle,
        POLICY,
    )
    assert refused.verdict.status == "fail"
    assert refused.verdict.cause == Cause.LIMIT
    assert "threads per block" in refused.verdict.reason
    assert replay(operator, case, library, session, oracle, POLICY).verdict.status == "pass"


def test_a_test_that_only_guard_bands_make_too_large_is_not_run(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    device = session.device
    session.device = replace(device, limits=replace(device.limits, max_buffer_bytes=16 << 10))
    try:
        result = replay(operator, case, linear_library(operator), session, oracle, POLICY)
    finally:
        session.device = device
    assert (result.verdict.status, result.verdict.cause) == ("not run", Cause.LIMIT)
    assert "guard bands included" in result.verdict.reason


class _NoTwin:
    """An oracle for an operator that has no float64 twin."""

    def expect(self, test: CarvedCase) -> Expectation:
        raise CompileError(f"{test.operator} has no twin")

    appeal = expect


def test_without_a_float64_twin_a_test_is_not_run_and_memory_is_still_checked(
    operator: Operator, case: MemoryCase, session: Session
) -> None:
    right = replay(operator, case, linear_library(operator), session, _NoTwin(), POLICY)
    assert (right.verdict.status, right.verdict.cause) == ("not run", Cause.NO_TWIN)
    assert "linear has no twin" in right.verdict.reason
    wrong = linear_library(operator, "missing guard")
    verdict = replay_operator(operator, [case], wrong, session, _NoTwin(), POLICY)
    assert verdict.status == "fail"
    assert verdict.cause == Cause.WRITE_OUTSIDE


def test_an_operator_whose_kernels_do_not_build_fails(
    operator: Operator, case: MemoryCase, session: Session, oracle: Oracle
) -> None:
    broken = replace(
        linear_library(operator), modules=(CodeModule("opencl-c", b"__kernel void linear( {"),)
    )
    verdict = replay_operator(operator, [case], broken, session, oracle, POLICY)
    assert verdict.status == "fail"
    assert verdict.cause == Cause.UNBUILT


@pytest.mark.parametrize("when", ["upload", "call"])
def test_a_lost_device_is_named_with_what_was_replayed(
    operator: Operator,
    case: MemoryCase,
    oracle: Oracle,
    when: str,
    require_device: RequireDevice,
) -> None:
    (device, *_) = require_device("opencl")
    with open_local(device) as session:
        library = linear_library(operator)
        remote = session.upload(library) if when == "call" else library
        process_of(session).kill()
        with pytest.raises(DeviceLostError) as caught:
            replay_operator(operator, [case], remote, session, oracle, POLICY)
    message = str(caught.value)
    assert message.startswith(device.name)
    assert ("the kernels of linear" if when == "upload" else f"in test {case.id}") in message
