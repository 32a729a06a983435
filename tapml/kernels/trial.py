"""Tries a hand-written kernel like the session, on its device, and keeps everything warm.

The server, the suite, expectations and device memory are reused between trials; a kernel that
crashes or hangs the server costs a new one. The only file of the session that is written is its
oracle's cache of expectations (``oracle.sqlite``), which every replay of the session's tests
shares.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from tapml.compiler.preflight import check
from tapml.devices.reach import describe_device, is_remote, open_device
from tapml.kernels.build_failure import compiler_text
from tapml.kernels.compiled import compiled_library
from tapml.kernels.dialects import language_of
from tapml.kernels.float64_sides import compile_twins_of, reference_of
from tapml.kernels.sample_tests import work_of
from tapml.kernels.session_facts import SessionFacts, find_operator
from tapml.kernels.trial_result import Outcome, Times, TrialResult
from tapml.kernels.warm_expectations import WarmExpectations
from tapml.kernels.written import WrittenKernel, WrittenKernels, read_kernel
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.expectation_store import store_of
from tapml.oracles.oracle import Oracle
from tapml.oracles.probing import Probing, is_probe
from tapml.replaying.failure_text import headline, last_driver_line
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.replayer import replay_operator
from tapml.replaying.results import OperatorVerdict
from tapml.replaying.run import RUNS
from tapml.suite.carved_test import CarvedTest
from tapml.suite.suite import Suite
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import CompileError, DeviceLostError, InputError, KernelTimeoutError
from tapml_targets.library import Library

DEADLINE_SECONDS: Final = 20.0
"""Time limit of one command, after which the kernel counts as hanging."""


class KernelTrial:
    """One operator of a session, its carved tests, and a device to try kernels on.

    A context manager.

    Parameters
    ----------
    facts
        The session.
    operator
        Name of the operator.
    shared
        Folders of kernels in addition to the session's own and those of its last run.
    device
        Another device of the session's platform; None for the session's.
    deadline_seconds
        Time limit of one command.
    patient
        Whether to wait for closer measurements (:class:`WarmExpectations`).

    Attributes
    ----------
    operator
        The operator.
    manifest
        The kernel's ``kernel.toml``.
    extension
        Extension of its sources, with the dot.
    files
        All of the kernel's files when it was last read.
    tests
        All of its carved tests.
    expectations
        Expectations of its outputs.

    Raises
    ------
    InputError
        If the session has no such operator, no test of it, or no kernel for it.
    NoSuchDeviceError
        If there is no such device.
    """

    def __init__(
        self,
        facts: SessionFacts,
        operator: str,
        *,
        shared: Sequence[Path] = (),
        device: str | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        patient: bool = True,
    ) -> None:
        self.facts = facts
        spec = device or facts.device
        self.description = describe_device(spec)
        self._open: Callable[..., Session] = (
            partial(open_device, spec) if is_remote(spec) else partial(open_local, self.description)
        )
        if self.description.platform != facts.settings.target:
            raise InputError(
                f"the session moves to {facts.settings.target}, not to {self.description.platform}"
            )
        self.target = facts.target(self.description.limits)
        self._suite = Suite.open(facts.suite)
        self._session: Session | None = None
        try:
            self.operator = find_operator(self._suite, operator)
            self.tests = tuple(self._suite.tests_of(operator))
            if not self.tests:
                raise InputError(f"the session's suite has no test of {operator}")
            self.extension = f".{language_of(self.target.platform).extension}"
            written = WrittenKernels(facts.kernel_folders(shared), self.target)
            self.manifest = self._find(written)
            self.files: tuple[Path, ...] = (self.manifest,)
            alone = {operator: self.operator}
            self._oracle = Oracle(
                alone, compile_twins_of(alone), facts.policy, cache=store_of(facts.suite)
            )
        except BaseException:
            self._suite.close()
            raise
        self.probing = Probing(self._oracle, reference_of(self.operator))
        self.expectations = WarmExpectations(self.probing, patient=patient)
        self._deadline = deadline_seconds
        self._memory: ReplayMemory | None = None
        self._remote: RemoteLibrary | None = None
        self._running = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and close suite and oracle."""
        self.drop_device()
        self._oracle.close()
        self._suite.close()

    def drop_device(self) -> None:
        """End the server; the next trial starts another."""
        session, self._session = self._session, None
        self._memory = self._remote = None
        if session is not None:
            session.close()

    def device(self) -> Session:
        """The session with the device, opened on demand."""
        if self._session is None:
            self._session = self._open(kernel_deadline=self._deadline)
            self._memory = ReplayMemory(self._session)
        return self._session

    def read(self) -> WrittenKernel:
        """Read the kernel's current files.

        Raises
        ------
        CompileError
            If manifest, sources, operator and limits do not match.
        """
        kernel = read_kernel(self.manifest, self.operator, self.target)
        self.files = kernel.files
        return kernel

    def look(
        self,
        cases: Iterable[CarvedCase],
        *,
        interrupted: Callable[[], bool] = lambda: False,
        on_case: Callable[[int], None] = lambda _: None,
        budget_seconds: float = math.inf,
    ) -> TrialResult:
        """Read the kernel, build it and replay `cases`; every failure is a result.

        Parameters
        ----------
        cases
            Carved tests and probes of the operator.
        interrupted
            Called between two tests; True skips the rest.
        on_case
            Called with the number of tests that have run.
        budget_seconds
            No test starts after this time; one always runs.
        """
        started = time.perf_counter()
        self._running = ""
        try:
            kernel = self.read()
        except CompileError as error:
            return self._ended("does not fit", str(error), started)
        try:
            remote = self._build(kernel)
            built = time.perf_counter()
            end = built + budget_seconds
            result = self._replay(remote, cases, interrupted, on_case, end)
        except CompileError as error:
            return self._ended(
                "does not build", compiler_text(kernel, str(error), self._try_building), started
            )
        except DeviceLostError as error:
            self.drop_device()
            return self._ended("device lost", self._loss(error), started)
        now = time.perf_counter()
        return replace(result, seconds=now - started, build_seconds=built - started)

    def compiled_ms(
        self, cases: Sequence[CarvedCase], interrupted: Callable[[], bool] = lambda: False
    ) -> float | None:
        """Mean time of the compiler's own kernel over `cases`, if there is one."""
        try:
            library = compiled_library(self.operator, self.target)
            if check(library, self.target.limits):
                return None
            verdict = self._verdict(self.device().upload(library), cases, interrupted)
        except CompileError:
            return None
        except DeviceLostError:
            self.drop_device()
            return None
        return mean_ms(verdict)

    def _find(self, written: WrittenKernels) -> Path:
        path = written.manifest_path(self.operator)
        if path is None:
            looked = ", ".join(map(str, written.folders))
            raise InputError(
                f"there is no hand-written kernel of {self.operator.name} for "
                f"{self.target.platform} in {looked}; `tapml kernel new {self.facts.folder} "
                f"{self.operator.name}` writes one to begin with"
            )
        return path

    def _build(self, kernel: WrittenKernel) -> RemoteLibrary:
        session = self.device()
        remote = session.upload(kernel.library)
        if self._remote is not None and self._remote is not remote:
            session.unload(self._remote)
        self._remote = remote
        return remote

    def _try_building(self, library: Library) -> None:
        self.device().unload(self.device().upload(library))

    def _verdict(
        self,
        remote: RemoteLibrary,
        cases: Iterable[CarvedCase],
        interrupted: Callable[[], bool],
    ) -> OperatorVerdict:
        return replay_operator(
            self.operator,
            self._until(cases, interrupted),
            remote,
            self.device(),
            self.expectations,
            self.facts.policy,
            memory=self._memory,
        )

    def _replay(
        self,
        remote: RemoteLibrary,
        cases: Iterable[CarvedCase],
        interrupted: Callable[[], bool],
        on_case: Callable[[int], None],
        end: float,
    ) -> TrialResult:
        self.expectations.hasty.clear()
        asked = 0
        stopped = False

        def stop() -> bool:
            nonlocal asked, stopped
            on_case(asked)
            asked += 1
            stopped = interrupted()
            return stopped or (asked > 1 and time.perf_counter() > end)

        verdict = self._verdict(remote, cases, stop)
        carved = [result for result in verdict.results if not is_probe(result.test)]
        return TrialResult(
            operator=self.operator.name,
            outcome=verdict.status,
            reason=verdict.reason,
            worst_ratio=verdict.worst_ratio if verdict.results else None,
            passed=sum(result.verdict.status == "pass" for result in carved),
            tests=len(carved),
            probes=len(verdict.results) - len(carved),
            of=len(self.tests),
            cases=len(verdict.results),
            times=Times(kernel=mean_ms(verdict)),
            hasty=bool(self.expectations.hasty),
            interrupted=stopped,
        )

    def _ended(self, outcome: Outcome, reason: str, started: float) -> TrialResult:
        return TrialResult(
            self.operator.name,
            outcome,
            reason,
            of=len(self.tests),
            seconds=time.perf_counter() - started,
        )

    def _loss(self, error: DeviceLostError) -> str:
        """How the device was lost, without the last commands, which do not help the developer."""
        first = headline(error)
        if not isinstance(error, KernelTimeoutError):
            said = last_driver_line(error)
            return f"{first}; it printed last:\n{said}" if said else first
        where = f" in test {self._running}" if self._running else ""
        return (
            f"the kernel did not end within {self._deadline:g} s{where}: it loops for ever, or "
            "needs longer (--deadline)"
        )

    def _until(self, cases: Iterable[CarvedCase], stop: Callable[[], bool]) -> Iterator[CarvedCase]:
        for case in cases:
            if stop():
                return
            self._running = case.id
            yield case


def mean_ms(verdict: OperatorVerdict) -> float | None:
    """Mean time of one call over the carved tests of a verdict, by device events.

    Tests that do the same work count by their median: a driver may finish compiling at the first.
    """
    groups: dict[object, list[float]] = {}
    for result in verdict.results:
        case = result.case
        if result.timing.kernel is not None and isinstance(case, CarvedTest):
            groups.setdefault(work_of(case), []).append(result.timing.kernel / RUNS)
    count = sum(map(len, groups.values()))
    total = sum(statistics.median(each) * len(each) for each in groups.values())
    return total / count * 1e3 if count else None
