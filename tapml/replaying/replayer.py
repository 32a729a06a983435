"""Replays carved tests on a device and gives verdicts (OPWISEVALIDATION of Algorithm 1).

Each test runs twice, in one batch and therefore one round trip. Outputs and guard bands are
poisoned with a different pattern each time, and inputs must remain unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure_text import UNBUILT, with_context
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.results import (
    OperatorVerdict,
    ReplayResult,
    Timing,
    failed_build,
    more_severe,
    summarise,
)
from tapml.replaying.run import RUNS, DeviceRun, Difference
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import (
    Cause,
    Finding,
    Status,
    Verdict,
    cause_of,
    failed,
    not_run,
    worse,
)
from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import (
    CompileError,
    DeviceLostError,
    InputError,
    LimitExceededError,
    TapmlError,
)
from tapml_targets.library import Library

__all__ = ["OperatorVerdict", "ReplayResult", "Timing", "replay", "replay_operator"]


class Expecting(Protocol):
    """The oracle interface of replay: :class:`tapml.oracles.oracle.Oracle`, or a repro folder."""

    def expect(self, test: CarvedCase) -> Expectation:
        """Float64 outputs and sensitivities of a test."""

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same, measured more precisely; called before a target is blamed."""


def replay(
    operator: Operator,
    test: CarvedCase,
    library: Library | RemoteLibrary,
    session: Session,
    oracle: Expecting,
    policy: Policy,
    *,
    memory: ReplayMemory | None = None,
    runs: int = RUNS,
    keep_passing: bool = False,
) -> ReplayResult:
    """Replay one carved test.

    Parameters
    ----------
    operator
        The test's operator.
    test
        From a suite.
    library
        The Library to run, with an operator or entry of the same name and parameters. Uploaded if
        necessary.
    oracle, policy
        Expected outputs and tolerances.
    memory
        Buffers shared between replays; None allocates them for this one.
    runs
        Number of runs, at least 2; more find nondeterminism.
    keep_passing
        Whether to keep the target's outputs even if the test passes.

    Raises
    ------
    DeviceLostError
        If the device is lost. Any other failure of the command, including a kernel that exceeds a
        limit at its launch, is the verdict ``fail``. A test whose guarded tensors do not fit the
        device, or without a float64 twin, is ``not run``.
    CompileError
        If the Library does not build on the device.
    InputError
        If the Library does not have the operator.
    """
    remote = library if isinstance(library, RemoteLibrary) else session.upload(library)
    if memory is None:
        with ReplayMemory(session) as own:
            result = replay(
                operator, test, remote, session, oracle, policy,
                memory=own, runs=runs, keep_passing=keep_passing,
            )  # fmt: skip
            changed = own.changed_weights()
        if changed:
            result = replace(result, verdict=result.verdict.with_finding("fail", CHANGED_WEIGHT))
        return result
    if operator.name not in (*remote.operators, *remote.entries):
        known = ", ".join((*remote.operators, *remote.entries)[:20])
        raise InputError(f"the Library has no operator {operator.name!r}; it has {known}")
    started = time.perf_counter()
    inputs = [np.asarray(values, order="C") for values in test.read_inputs()]
    reference = test.read_outputs()
    read = time.perf_counter()
    try:
        run = DeviceRun(operator, test, inputs, reference, memory)
    except LimitExceededError as error:
        # The operator's own tensors were checked against the limits before; guards need more.
        return ReplayResult(
            test.id,
            operator.name,
            not_run(Cause.LIMIT, str(error)),
            Timing(read - started, 0, None, 0, 0),
            test,
        )
    try:
        run.execute(remote, runs)
        difference = run.difference(remote) if run.differs and not run.findings() else None
    except DeviceLostError:
        raise
    except TapmlError as error:
        memory.forget()
        verdict = failed(cause_of(error), f"the device refused the call: {error}")
        now = time.perf_counter()
        return ReplayResult(
            test.id, operator.name, verdict, Timing(read - started, now - read, None, 0.0, 0), test
        )
    ran = time.perf_counter()
    try:
        expectation = oracle.expect(test)
    except CompileError as error:
        reason = f"there is no float64 twin to compare with: {error}"
        verdict = _add_findings(not_run(Cause.NO_TWIN, reason), run)
    else:
        verdict = _decide(run, difference, expectation, policy)
        if verdict.status != "pass" and not run.findings():
            # Three perturbations of the inputs are too few to blame the target.
            verdict = _decide(run, difference, oracle.appeal(test), policy)
    timing = Timing(
        read - started, ran - read, run.kernel_seconds(), time.perf_counter() - ran, run.nbytes
    )
    kept = keep_passing or verdict.status != "pass"
    actual = tuple(run.outputs(0)) if kept else ()
    return ReplayResult(test.id, operator.name, verdict, timing, test, actual)


def replay_operator(
    operator: Operator,
    tests: Iterable[CarvedCase],
    library: Library | RemoteLibrary,
    session: Session,
    oracle: Expecting,
    policy: Policy,
    *,
    memory: ReplayMemory | None = None,
    on_result: Callable[[ReplayResult], None] | None = None,
    stop_after: int | None = None,
    runs: int = RUNS,
    keep_passing: bool = True,
) -> OperatorVerdict:
    """Replay the carved tests of one operator; it fails if its Library does not build.

    Parameters
    ----------
    on_result
        Called after every test.
    stop_after
        Stop after this many tests that did not pass; None runs them all. Omitted tests are not
        counted and never become a pass.
    runs
        Number of runs of each test.
    keep_passing
        Whether to keep the target's outputs of the worst test even if it passes, for a picture of
        its errors. They take the memory of one test per verdict.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    if memory is None:
        with ReplayMemory(session) as own:
            return replay_operator(
                operator, tests, library, session, oracle, policy,
                memory=own, on_result=on_result, stop_after=stop_after, runs=runs,
                keep_passing=keep_passing,
            )  # fmt: skip
    try:
        remote = library if isinstance(library, RemoteLibrary) else session.upload(library)
    except CompileError as error:
        return failed_build(operator, cause_of(error), f"{UNBUILT}{error}")
    except DeviceLostError as error:
        place = f"{session.device.name}, building the kernels of {operator.name}: "
        raise with_context(error, before=place) from error
    results: list[ReplayResult] = []
    worst: ReplayResult | None = None
    troubled = 0
    for test in tests:
        try:
            result = replay(
                operator, test, remote, session, oracle, policy,
                memory=memory, runs=runs, keep_passing=keep_passing,
            )  # fmt: skip
        except DeviceLostError as error:
            raise with_context(
                error, before=f"{session.device.name} in test {test.id}: "
            ) from error
        worst = more_severe(worst, result)
        results.append(replace(result, actual=()))
        if on_result is not None:
            on_result(result)
        troubled += result.verdict.status != "pass"
        if stop_after is not None and troubled >= stop_after:
            break
    return summarise(operator, results, worst, memory.changed_weights())


CHANGED_WEIGHT: Final = Finding(
    Cause.CHANGED_INPUT, "the kernel wrote to a weight, which it may only read"
)
_DIFFERENCES: Final[Mapping[Difference, tuple[Status, Cause, str]]] = {
    "race": (
        "degraded",
        Cause.NONDETERMINISM,
        "differ between runs on the same inputs: the kernel races",
    ),
    "reads around": (
        "fail",
        Cause.READ_OUTSIDE,
        "change with what lies around its inputs: the kernel reads outside of them",
    ),
    "reads inside": (
        "fail",
        Cause.STALE_READ,
        "change with what its outputs and workspaces held: the kernel reads what it has not "
        "written",
    ),
    "unknown": (
        "degraded",
        Cause.NONDETERMINISM,
        "differ between two runs on the same inputs: the kernel races, or reads what is not its "
        "own",
    ),
}


def _decide(
    run: DeviceRun, difference: Difference | None, expectation: Expectation, policy: Policy
) -> Verdict:
    """The verdict from the outputs of all runs and the memory checks."""
    verdict = judge(run.operator, expectation, run.reference, run.outputs(0), policy)
    most = 0
    for later in range(1, run.kept):
        differing = sum(run.differing(later))
        if differing:
            other = judge(run.operator, expectation, run.reference, run.outputs(later), policy)
            if worse(verdict.status, other.status) != verdict.status:
                verdict = other
        most = max(most, differing)
    if difference is not None:
        status, kind, what = _DIFFERENCES[difference]
        verdict = verdict.with_finding(status, Finding(kind, f"{most} elements {what}"))
    return _add_findings(verdict, run)


def _add_findings(verdict: Verdict, run: DeviceRun) -> Verdict:
    for finding in run.findings():
        verdict = verdict.with_finding("fail", finding)
    return verdict
