"""Replays tests of a suite and writes each operator's most severe result as a repro folder."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path

from tapml.compiler.compiler import Compiler
from tapml.compiler.preflight import require
from tapml.compiler.twin import compile_twins
from tapml.oracles.expectation_store import store_of
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure import Failure
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.replayer import replay
from tapml.replaying.results import more_severe
from tapml.repro.writing import write_repro
from tapml.suite.carved_test import CarvedTest
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError
from tapml_targets.library import Library
from tapml_targets.platforms import DEFAULT_PLATFORM
from tapml_targets.target import Target


def replay_to_folders(
    folder: Path, out: Path, operators: tuple[str, ...], test: str | None, device: str | None
) -> list[Path]:
    """Replay tests on a device, and write a repro folder per operator, of its most severe test.

    Parameters
    ----------
    folder
        The suite.
    out
        The parent of the repro folders.
    operators
        Patterns of operator names.
    test
        The id of the only test to replay.
    device
        Name of the device; the default OpenCL device if None.

    Raises
    ------
    InputError
        If the suite has no such test or operator.
    CompileError
        If an operator cannot be compiled or does not fit the device, so there is no test to bundle.
    DeviceLostError
        If the device is lost.
    """
    policy = Policy()
    with Suite.open(folder) as suite:
        chosen = _tests(suite, operators, test)
        with (
            Compiler() as compiler,
            open_local(device or DEFAULT_PLATFORM) as session,
            Oracle(suite.operators, compile_twins, policy, cache=store_of(suite.path)) as oracle,
        ):
            target = Target(session.device.platform, limits=session.device.limits)
            folders = []
            for name, tests in chosen.items():
                library = compiler.compile(suite.operators[name], target)
                require(library, target.limits)
                failure = _gravest(suite.operators[name], library, tests, session, oracle, policy)
                folders.append(write_repro(out / name, failure))
            return folders


def _tests(
    suite: Suite, operators: tuple[str, ...], test: str | None
) -> dict[str, list[CarvedTest]]:
    """The selected tests, by operator."""
    if test is not None:
        only = suite.test(test)
        if operators and not any(fnmatchcase(only.operator, pattern) for pattern in operators):
            raise InputError(f"test {test} is of operator {only.operator}, not {operators[0]!r}")
        return {only.operator: [only]}
    chosen: dict[str, list[CarvedTest]] = {}
    for each in suite.tests(Filters(operators=operators)):
        chosen.setdefault(each.operator, []).append(each)
    if not chosen:
        known = ", ".join(list(suite.operators)[:20])
        raise InputError(f"{suite.path} has no test of {operators[0]!r}; it has {known}")
    return chosen


def _gravest(
    operator: Operator,
    library: Library,
    tests: Sequence[CarvedTest],
    session: Session,
    oracle: Oracle,
    policy: Policy,
) -> Failure:
    """The most severe result of the tests, which may be a pass."""
    remote = session.upload(library)
    with ReplayMemory(session) as memory:
        results = [
            replay(operator, test, remote, session, oracle, policy, memory=memory) for test in tests
        ]
    worst = reduce(more_severe, results)
    return Failure(
        operator=operator,
        result=worst,
        library=library,
        device=session.device,
        expectation=oracle.appeal(worst.case),
        policy=policy,
    )
