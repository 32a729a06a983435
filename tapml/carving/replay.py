"""Replays carved tests on a device and says what came of it (OPWISEVALIDATION of Algorithm 1).

Each test runs twice, in one batch and therefore one round trip: what it may write, and the guard
bands around every tensor, are poisoned with another pattern each time, and what it only reads must
come out as it went in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from tapml.carving.lost import UNBUILT, rephrased
from tapml.carving.replay_memory import ReplayMemory
from tapml.carving.replay_results import (
    OperatorVerdict,
    ReplayResult,
    Timing,
    graver,
    summarise,
    unbuilt,
)
from tapml.carving.replay_run import RUNS, Cause, DeviceRun
from tapml.compare.expectation import Expectation
from tapml.compare.judge import judge
from tapml.compare.oracle import CarvedCase
from tapml.compare.policy import Policy
from tapml.compare.verdict import Status, Verdict, not_run, worse
from tapml.graph.plan import Operator
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
    """What replay needs of an oracle: :class:`tapml.compare.oracle.Oracle`, or a repro folder."""

    def expect(self, test: CarvedCase) -> Expectation:
        """Float64 outputs and sensitivities of a test."""

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same, measured more closely; asked for before a target is accused."""


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
        The operator the test is of.
    test
        From a suite.
    library
        What to run; holds an operator, or an entry, of the same name and parameters. Uploaded where
        it is not yet.
    session
        The device.
    oracle, policy
        What the outputs are held against, and how closely.
    memory
        Buffers shared between replays; made for this one where it is None.
    runs
        How often the test runs, twice at least: more find what is not deterministic.
    keep_passing
        Keep the target's outputs of a test that passes, too.

    Raises
    ------
    DeviceLostError
        If the device is lost; any other failure of the command is a verdict: ``fail``, limits that
        the kernel breaks at its launch included. A test whose guarded tensors do not fit the device
        and one without a float64 twin are ``not run``.
    CompileError
        If the Library does not build on the device.
    InputError
        If the Library does not hold the operator.
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
            finding = "the kernel wrote to a weight, which it may only read"
            result = replace(result, verdict=result.verdict.with_finding("fail", finding))
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
        # The operator's own tensors were held against the limits before; guards ask for more.
        return ReplayResult(
            test.id, operator.name, not_run(str(error)), Timing(read - started, 0, None, 0, 0), test
        )
    try:
        run.execute(remote, runs)
        cause = run.cause(remote) if run.differs and not run.findings() else None
    except DeviceLostError:
        raise
    except TapmlError as error:
        memory.forget()
        verdict = Verdict("fail", 0.0, (), f"the device refused the call: {error}", "target")
        now = time.perf_counter()
        return ReplayResult(
            test.id, operator.name, verdict, Timing(read - started, now - read, None, 0.0, 0), test
        )
    ran = time.perf_counter()
    try:
        expectation = oracle.expect(test)
    except CompileError as error:
        verdict = _add_findings(not_run(f"there is no float64 twin to judge by: {error}"), run)
    else:
        verdict = _decide(run, cause, expectation, policy)
        if verdict.status != "pass" and not run.findings():
            # Nobody is accused on three movements of the inputs.
            verdict = _decide(run, cause, oracle.appeal(test), policy)
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
    """Replay the carved tests of one operator; it fails where its Library does not build.

    Parameters
    ----------
    on_result
        Called after every test.
    stop_after
        Stop after so many tests that did not pass; None runs them all. What is left out is not
        counted and never a pass of its own.
    runs
        How often each test runs.
    keep_passing
        Keep the target's outputs of the worst test though it passes: what a picture of its errors
        is made from. Memory is that of one test, which whoever collects verdicts may not want.

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
        return unbuilt(operator, f"{UNBUILT}{error}")
    except DeviceLostError as error:
        place = f"{session.device.name}, building the kernels of {operator.name}: "
        raise rephrased(error, before=place) from error
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
            raise rephrased(error, before=f"{session.device.name} in test {test.id}: ") from error
        worst = graver(worst, result)
        results.append(replace(result, actual=()))
        if on_result is not None:
            on_result(result)
        troubled += result.verdict.status != "pass"
        if stop_after is not None and troubled >= stop_after:
            break
    return summarise(operator, results, worst, memory.changed_weights())


_CAUSES: Final[Mapping[Cause, tuple[Status, str]]] = {
    "race": ("degraded", "differ between runs on the same inputs: the kernel races"),
    "reads around": (
        "fail",
        "change with what lies around its inputs: the kernel reads outside of them",
    ),
    "reads inside": (
        "fail",
        "change with what its outputs and workspaces held: the kernel reads what it has not "
        "written",
    ),
    "unknown": (
        "degraded",
        "differ between two runs on the same inputs: the kernel races, or reads what is not its "
        "own",
    ),
}


def _decide(
    run: DeviceRun, cause: Cause | None, expectation: Expectation, policy: Policy
) -> Verdict:
    """The verdict on all runs' numbers and on what memory says."""
    verdict = judge(run.operator, expectation, run.reference, run.outputs(0), policy)
    most = 0
    for later in range(1, run.kept):
        differing = sum(run.differing(later))
        if differing:
            other = judge(run.operator, expectation, run.reference, run.outputs(later), policy)
            if worse(verdict.status, other.status) != verdict.status:
                verdict = other
        most = max(most, differing)
    if cause is not None:
        status, what = _CAUSES[cause]
        verdict = verdict.with_finding(status, f"{most} elements {what}")
    return _add_findings(verdict, run)


def _add_findings(verdict: Verdict, run: DeviceRun) -> Verdict:
    for finding in run.findings():
        verdict = verdict.with_finding("fail", finding)
    return verdict
