"""Tries a hand-written kernel as the session would, on its device, and keeps everything warm.

The server, the suite, expectations and device memory outlive a look; a kernel that takes the server
down, or does not end, costs a new server. Nothing of the session is written but its oracle's cache
of expectations (``oracle.sqlite``), which every replay of the session's tests shares.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tapml.carving.carved_test import CarvedTest
from tapml.carving.lost import headline, printed_last
from tapml.carving.probing import Probing, is_probe
from tapml.carving.replay import replay_operator
from tapml.carving.replay_memory import ReplayMemory
from tapml.carving.replay_results import OperatorVerdict
from tapml.carving.replay_run import RUNS
from tapml.carving.suite import Suite
from tapml.compare.expectation_store import store_of
from tapml.compare.oracle import CarvedCase, Oracle
from tapml.compiler.preflight import check
from tapml.kernels.build_failure import compiler_text
from tapml.kernels.case_choice import work_of
from tapml.kernels.compiled import compiled_library
from tapml.kernels.dialects import dialect_of
from tapml.kernels.float64_sides import compile_twins_of, reference_of
from tapml.kernels.session_facts import SessionFacts, find_operator
from tapml.kernels.trial_result import Outcome, Times, TrialResult
from tapml.kernels.warm_expectations import WarmExpectations
from tapml.kernels.written import WrittenKernel, WrittenKernels, read_kernel
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_rpc.reach import describe_device, is_remote, open_device
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import CompileError, DeviceLostError, InputError, KernelTimeoutError
from tapml_targets.library import Library

DEADLINE_SECONDS: Final = 20.0
"""How long one command of a trial may take before the kernel counts as hanging."""


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
        Folders of kernels beside the session's own and those its last run was given.
    device
        Another device of the session's platform; None for the session's.
    deadline_seconds
        How long one command may take.
    patient
        Whether closer measurements are waited for (:class:`WarmExpectations`).

    Attributes
    ----------
    operator
        The operator.
    manifest
        The kernel's ``kernel.toml``.
    extension
        Of its sources, with the dot.
    files
        All of the kernel's files, as they were named when it was last read.
    tests
        All of its carved tests.
    expectations
        What its outputs are held against.

    Raises
    ------
    InputError
        If the session has no such operator, or no test of it, or there is no kernel to try.
    NoSuchDeviceError
        If the device is gone.
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
        self.extension = f".{dialect_of(self.target.platform).extension}"
        self.probing = Probing(self._oracle, reference_of(self.operator))
        self.expectations = WarmExpectations(self.probing, patient=patient)
        self._deadline = deadline_seconds
        self._memory: ReplayMemory | None = None
        self._remote: RemoteLibrary | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and close suite and oracle."""
        self.drop_device()
        self._oracle.close()
        self._suite.close()

    def drop_device(self) -> None:
        """End the server; the next look starts another."""
        session, self._session = self._session, None
        self._memory = self._remote = None
        if session is not None:
            session.close()

    def device(self) -> Session:
        """The session with the device, opened where it is not."""
        if self._session is None:
            self._session = self._open(kernel_deadline=self._deadline)
            self._memory = ReplayMemory(self._session)
        return self._session

    def read(self) -> WrittenKernel:
        """The kernel as it lies on disk now.

        Raises
        ------
        CompileError
            If manifest, sources, operator and limits do not fit together.
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
            Asked between two tests; the rest is left out where it says so.
        on_case
            Told how many tests have run.
        budget_seconds
            After so long no further test begins; one runs in any case.
        """
        started = time.perf_counter()
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
        """Mean time of the compiler's own kernel over `cases`; None where there is none."""
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
            _until(cases, interrupted),
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
        """How the device was lost; what was sent last says little to whoever wrote the kernel."""
        first = headline(error)
        if not isinstance(error, KernelTimeoutError):
            said = printed_last(error)
            return f"{first}; it printed last:\n{said}" if said else first
        found = re.search(r" in test \S+(?=:)", first)
        return (
            f"the kernel did not end within {self._deadline:g} s{found.group() if found else ''}: "
            "it loops for ever, or needs longer (--deadline)"
        )


def mean_ms(verdict: OperatorVerdict) -> float | None:
    """Mean time of one call over the carved tests of a verdict, by device events.

    Of tests that do the same work the median counts: a driver may finish compiling at the first.
    """
    groups: dict[object, list[float]] = {}
    for result in verdict.results:
        case = result.case
        if result.timing.kernel is not None and isinstance(case, CarvedTest):
            groups.setdefault(work_of(case), []).append(result.timing.kernel / RUNS)
    count = sum(map(len, groups.values()))
    total = sum(statistics.median(each) * len(each) for each in groups.values())
    return total / count * 1e3 if count else None


def _until(cases: Iterable[CarvedCase], stop: Callable[[], bool]) -> Iterator[CarvedCase]:
    for case in cases:
        if stop():
            return
        yield case
