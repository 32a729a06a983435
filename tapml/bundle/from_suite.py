"""Replays tests of a suite and writes the gravest of each operator as a repro folder."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path

from tapml.carving.carved_test import CarvedTest
from tapml.carving.replay import replay
from tapml.carving.replay_memory import ReplayMemory
from tapml.carving.replay_repro import write_repro
from tapml.carving.replay_results import graver
from tapml.carving.repro_failure import Failure
from tapml.carving.selection import Filters
from tapml.carving.suite import Suite
from tapml.compare.expectation_store import store_of
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compiler.compiler import Compiler
from tapml.compiler.preflight import require
from tapml.compiler.twin import compile_twins
from tapml.graph.plan import Operator
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError
from tapml_targets.library import Library
from tapml_targets.target import Target


def replay_to_folders(
    folder: Path, out: Path, operators: tuple[str, ...], test: str | None, device: str | None
) -> list[Path]:
    """Replay tests on a device; a repro folder per operator, of its gravest test.

    Parameters
    ----------
    folder
        The suite.
    out
        Where the folders go.
    operators
        Patterns of operator names.
    test
        The id of one test; only that is replayed.
    device
        Name of the device; the default OpenCL device if None.

    Raises
    ------
    InputError
        If the suite has no such test or operator.
    CompileError
        If an operator cannot be compiled or does not fit the device: there is no test to bundle.
    DeviceLostError
        If the device is lost.
    """
    policy = Policy()
    with Suite.open(folder) as suite:
        chosen = _tests(suite, operators, test)
        with (
            Compiler() as compiler,
            open_local(device or "opencl") as session,
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
    """The tests that are meant, by operator."""
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
    """The gravest of the tests, which may be a pass."""
    remote = session.upload(library)
    with ReplayMemory(session) as memory:
        results = [
            replay(operator, test, remote, session, oracle, policy, memory=memory) for test in tests
        ]
    worst = reduce(graver, results)
    return Failure(
        operator=operator,
        result=worst,
        library=library,
        device=session.device,
        expectation=oracle.appeal(worst.case),
        policy=policy,
    )
