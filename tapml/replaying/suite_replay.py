"""Replays a complete suite on a device, operator by operator, with a result that can be stored.

``tapml replay`` prints it, ``tapml diff`` compares it and an upgrade gate archives it. Tests are
read as they are replayed, because a suite may exceed memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tapml.compiler.compiler import Compiler
from tapml.compiler.preflight import check
from tapml.devices.self_test import session_self_test
from tapml.oracles.explain import explain
from tapml.oracles.oracle import Oracle
from tapml.oracles.probes import why_no_probe
from tapml.oracles.probing import Probing, is_probe
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure import Failure
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.pace import Pace, Pacer
from tapml.replaying.replayer import replay, replay_operator
from tapml.replaying.results import OperatorVerdict, ReplayResult, failed_build
from tapml.replaying.run import RUNS
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Status, worse
from tapml_rpc.client import Session
from tapml_targets.description import fingerprint, to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import CompileError, InputError
from tapml_targets.installed import result_versions
from tapml_targets.library import Library
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.compiler.reference_module import ReferenceModule

FORMAT: Final = "tapml-replay/2"
_EVERYTHING: Final = Filters()


@dataclass(frozen=True)
class SuiteReplay:
    """The result of replaying a suite.

    Attributes
    ----------
    suite
        Folder of the suite.
    device, fingerprint
        The device; the fingerprint changes with the driver.
    policy
        The tolerances of the verdicts.
    versions
        Versions of the packages involved.
    operators
        One verdict per operator with tests, in the plan's order.
    """

    suite: str
    device: DeviceDescription
    fingerprint: str
    policy: Policy
    versions: dict[str, str]
    operators: tuple[OperatorVerdict, ...]

    @property
    def status(self) -> Status:
        """The most severe status; ``not run`` if nothing was replayed."""
        status: Status = "pass" if self.operators else "not run"
        for verdict in self.operators:
            status = worse(status, verdict.status)
        return status

    @property
    def tests(self) -> int:
        """Number of replayed carved tests."""
        return self._count(probes=False)

    @property
    def probes(self) -> int:
        """Number of replayed exact probes."""
        return self._count(probes=True)

    def _count(self, *, probes: bool) -> int:
        return sum(
            is_probe(result.test) == probes
            for verdict in self.operators
            for result in verdict.results
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for a strict JSON file, format ``tapml-replay/2``."""
        return {
            "format": FORMAT,
            "suite": self.suite,
            "device": to_plain(self.device),
            "fingerprint": self.fingerprint,
            "policy": self.policy.to_json(),
            "policy_hash": self.policy.hash,
            "versions": self.versions,
            "status": self.status,
            "operators": [verdict.to_json() for verdict in self.operators],
        }


class SuiteReplayer:
    """Replays operators of a suite on one device.

    Parameters
    ----------
    suite
        Tests and operator definitions; neither model nor plan is needed.
    compiler
        Compiles operators without a Library in `libraries`.
    oracle, policy
        Expected outputs and tolerances.
    libraries
        Precompiled Libraries, by operator.
    runs
        Number of runs of each test, at least 2; more find nondeterminism.
    pace
        The longest that an operator may take; None for no bound.
    """

    def __init__(
        self,
        suite: Suite,
        session: Session,
        compiler: Compiler,
        oracle: Oracle,
        policy: Policy,
        *,
        libraries: Mapping[str, Library] | None = None,
        runs: int = RUNS,
        pace: Pace | None = None,
    ) -> None:
        self.suite = suite
        self.session = session
        self.oracle = oracle
        self.policy = policy
        self._given = dict(libraries or {})
        self._runs = runs
        self._compiler = compiler
        self._probing = Probing(oracle, self._reference)
        self._pacer = None if pace is None else Pacer(pace, session, self._reference)
        self.target = Target(session.device.platform, limits=session.device.limits)

    def replay(
        self,
        filters: Filters = _EVERYTHING,
        *,
        on_operator: Callable[[OperatorVerdict], None] | None = None,
        on_result: Callable[[ReplayResult], None] | None = None,
        on_failure: Callable[[Failure], None] | None = None,
    ) -> SuiteReplay:
        """Replay the tests that match `filters`.

        Parameters
        ----------
        filters
            Filters on tests.
        on_operator
            Called with each operator's verdict.
        on_result
            Called after every test.
        on_failure
            Called with the worst test of every operator that does not pass, while the device is
            still open; not called if the operator could not be compiled or built.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        verdicts = []
        limit = self.session.device.limits.memory_bytes
        with ReplayMemory(self.session, limit) as memory:
            for operator, library in self._libraries(filters):
                verdict = self._operator(operator, library, filters, memory, on_result)
                verdicts.append(verdict)
                if on_operator is not None:
                    on_operator(verdict)
                failure = self._failure(operator, library, verdict)
                if failure is not None and on_failure is not None:
                    on_failure(failure)
        device = self.session.device
        return SuiteReplay(
            suite=str(self.suite.path),
            device=device,
            fingerprint=fingerprint(device),
            policy=self.policy,
            versions=result_versions(),
            operators=tuple(verdicts),
        )

    def explain(self, identifier: str) -> tuple[ReplayResult, str]:
        """Replay one test, or one probe, and explain its verdict.

        Returns
        -------
        tuple
            The result, and the explanation as lines of text.

        Raises
        ------
        InputError
            If the suite has no such test.
        CompileError
            If its operator does not compile for the device, or does not build on it.
        """
        carved = self.suite.test(
            identifier.rpartition("/")[0] if is_probe(identifier) else identifier
        )
        operator = self.suite.operators[carved.operator]
        tests = {test.id: test for test in self._probing.tests(operator, [carved])}
        if identifier not in tests:
            raise InputError(
                f"{operator.name} has no probe {identifier!r}: {why_no_probe(operator)}"
            )
        test = tests[identifier]
        library = self._given.get(operator.name) or self._compiler.compile(operator, self.target)
        result = replay(
            operator, test, library, self.session, self._probing, self.policy, runs=self._runs
        )
        passed = result.verdict.status == "pass"
        expectation = self._probing.expect(test) if passed else self._probing.appeal(test)
        traces = {
            output.name: self.oracle.trace(test, expectation, position, output.index)
            for position, output in enumerate(result.verdict.outputs)
            if expectation.outputs[position].is_float and test is carved and output.elements
        }
        text = explain(
            result.verdict,
            expectation,
            self.policy,
            operator,
            reference=test.read_outputs(),
            traces=traces,
            self_test=session_self_test(self.session),
        )
        return result, text

    def _libraries(self, filters: Filters) -> Iterator[tuple[Operator, Library | CompileError]]:
        """Each operator with tests and its Library, in the plan's order."""
        names = self.suite.tested_operators(filters)
        operators = [operator for name, operator in self.suite.operators.items() if name in names]
        to_compile = [operator for operator in operators if operator.name not in self._given]
        compiled = self._compiler.compile_all(to_compile, self.target)
        for operator in operators:
            given = self._given.get(operator.name)
            yield (operator, given) if given is not None else next(compiled)

    def _operator(
        self,
        operator: Operator,
        library: Library | CompileError,
        filters: Filters,
        memory: ReplayMemory,
        on_result: Callable[[ReplayResult], None] | None,
    ) -> OperatorVerdict:
        if isinstance(library, CompileError):
            return failed_build(operator, Cause.NO_KERNEL, str(library))
        problems = check(library, self.target.limits)
        if problems:
            return failed_build(operator, Cause.LIMIT, "; ".join(map(str, problems)))
        verdict = replay_operator(
            operator,
            self._probing.tests(operator, self.suite.tests_of(operator.name, filters)),
            library,
            self.session,
            self._probing,
            self.policy,
            memory=memory,
            on_result=on_result,
            runs=self._runs,
            keep_passing=False,
        )
        if self._pacer is None:
            return verdict
        return self._pacer.judged(operator, library, verdict)

    def _failure(
        self, operator: Operator, library: Library | CompileError, verdict: OperatorVerdict
    ) -> Failure | None:
        """The content of the operator's repro folder, if one of its tests failed."""
        worst = verdict.worst
        if worst is None or worst.verdict.status in ("pass", "not run"):
            return None
        if isinstance(library, CompileError):
            return None
        return Failure(
            operator=operator,
            result=worst,
            library=library,
            device=self.session.device,
            expectation=self._probing.appeal(worst.case),
            policy=self.policy,
        )

    def _reference(self) -> ReferenceModule:
        return self._compiled_reference

    @cached_property
    def _compiled_reference(self) -> ReferenceModule:
        from tapml.compiler.reference import compile_reference

        return compile_reference(self.suite.operators.values())


def replay_suite(
    suite: Suite,
    session: Session,
    compiler: Compiler,
    oracle: Oracle,
    policy: Policy,
    filters: Filters = _EVERYTHING,
    *,
    on_operator: Callable[[OperatorVerdict], None] | None = None,
    on_result: Callable[[ReplayResult], None] | None = None,
) -> SuiteReplay:
    """Replay the tests of a suite that match `filters`; see :class:`SuiteReplayer`."""
    replayer = SuiteReplayer(suite, session, compiler, oracle, policy)
    return replayer.replay(filters, on_operator=on_operator, on_result=on_result)
