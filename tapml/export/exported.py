"""Runs the tests of exported folders on one device, for the pytest plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tapml.compiler.preflight import check, require
from tapml.export.cases import LIBRARIES, SUITE, ExportedCases, read_cases
from tapml.export.expectations import EXPECTATIONS, ExportedExpectations
from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.replayer import CHANGED_WEIGHT, replay
from tapml.replaying.results import ReplayResult, Timing
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, cause_of, failed
from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import CompileError, DeviceLostError, InputError
from tapml_targets.library import Library
from tapml_targets.library_format import unpack
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler

_MAX_LIBRARY_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class _Built:
    """An operator's kernels: on the device if they could be built, else the reason."""

    library: Library | None
    remote: RemoteLibrary | None
    problem: str = ""
    cause: Cause = Cause.NONE


class ExportedFolder:
    """An open exported folder.

    Attributes
    ----------
    path
        The folder.
    cases
        Its list of tests.
    suite, expectations
        The tests and their expected results.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cases: ExportedCases = read_cases(path)
        self.suite = Suite.open(path / SUITE)
        try:
            self.expectations = ExportedExpectations(path / EXPECTATIONS, self.suite.operators)
        except BaseException:
            self.suite.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.expectations.close()
        self.suite.close()

    def library(self, file: str, platform: str, target: Target) -> Library | None:
        """The precompiled Library; None if there is none that the device can run.

        Raises
        ------
        InputError
            If the file is damaged.
        """
        path = self.path / LIBRARIES / platform / f"{file.removesuffix('.py')}.tapml"
        if not path.is_file():
            return None
        if path.stat().st_size > _MAX_LIBRARY_BYTES:
            raise InputError(f"{path} is larger than {_MAX_LIBRARY_BYTES} bytes: export again")
        library = unpack(path.read_bytes())
        # It was compiled for given limits; a smaller device needs other kernels.
        return None if check(library, target.limits) else library


class ExportReplayer:
    """Replays tests of exported folders on one device, one at a time and in any order.

    A context manager. Kernels are built once per operator, weights stay on the device.

    Parameters
    ----------
    policy
        The tolerances of the verdicts.
    """

    def __init__(self, session: Session, policy: Policy) -> None:
        self.session = session
        self.policy = policy
        self.lost = ""
        self._target = Target(session.device.platform, limits=session.device.limits)
        self._stack = ExitStack()
        self._compiler: Compiler | None = None
        self._memory = ReplayMemory(session)
        self._folders: dict[Path, ExportedFolder] = {}
        self._built: dict[tuple[Path, str], _Built] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.lost:
            self._memory.close()
        self._stack.close()

    def replay(self, folder: Path, file: str, test: str) -> ReplayResult:
        """Replay one test.

        Parameters
        ----------
        folder, file
            The exported folder and the name of the test file.
        test
            Id of one of its tests.

        Raises
        ------
        DeviceLostError
            If the device is lost; every later test raises it immediately.
        InputError
            If the folder has no such test, or is damaged.
        SetupError
            If there is no precompiled Library for the platform and TVM is not installed.
        """
        if self.lost:
            raise DeviceLostError(self.lost)
        exported = self._open(folder)
        operator = self._operator(exported, file)
        case: CarvedCase
        if test in exported.cases.files[file].probes:
            case = exported.expectations.probe(test, operator)
        else:
            case = exported.suite.test(test)
        if case.operator != operator.name:
            raise InputError(f"test {test} is of operator {case.operator}, not of {operator.name}")
        try:
            built = self._build(exported, file, operator)
            if built.remote is None:
                verdict = failed(built.cause, built.problem)
                return ReplayResult(test, operator.name, verdict, Timing(0, 0, None, 0, 0), case)
            result = replay(
                operator,
                case,
                built.remote,
                self.session,
                exported.expectations,
                self.policy,
                memory=self._memory,
            )
            changed = self._memory.changed_weights()
        except DeviceLostError as error:
            self.lost = f"{self.session.device.name} was lost in test {test}: {error}"
            raise DeviceLostError(self.lost) from error
        if changed:
            result = replace(result, verdict=result.verdict.with_finding("fail", CHANGED_WEIGHT))
        return result

    def kernels(self, folder: Path, file: str) -> Library | None:
        """The Library that ran, for a repro folder; None if it could not be built."""
        exported = self._open(folder)
        return self._build(exported, file, self._operator(exported, file)).library

    def operator(self, folder: Path, file: str) -> Operator:
        """The operator of a test file."""
        return self._operator(self._open(folder), file)

    def expectations(self, folder: Path) -> ExportedExpectations:
        """The expected results of a folder's tests."""
        return self._open(folder).expectations

    def _open(self, folder: Path) -> ExportedFolder:
        if folder not in self._folders:
            self._folders[folder] = self._stack.enter_context(ExportedFolder(folder))
        return self._folders[folder]

    def _operator(self, exported: ExportedFolder, file: str) -> Operator:
        listed: Mapping[str, object] = exported.cases.files
        if file not in listed:
            raise InputError(f"{exported.path} lists no tests for {file}: export again")
        name = exported.cases.files[file].operator
        try:
            return exported.suite.operators[name]
        except KeyError:
            raise InputError(f"the suite in {exported.path} has no operator {name!r}") from None

    def _build(self, exported: ExportedFolder, file: str, operator: Operator) -> _Built:
        key = (exported.path, file)
        if key not in self._built:
            self._built[key] = self._try_to_build(exported, file, operator)
        return self._built[key]

    def _try_to_build(self, exported: ExportedFolder, file: str, operator: Operator) -> _Built:
        library = exported.library(file, self._target.platform, self._target)
        try:
            if library is None:
                library = self._compile(operator)
                require(library, self._target.limits)
            return _Built(library, self.session.upload(library))
        except CompileError as error:
            cause = Cause.NO_KERNEL if library is None else cause_of(error)
            return _Built(library, None, f"the kernels cannot be built: {error}", cause)

    def _compile(self, operator: Operator) -> Library:
        from tapml.compiler.compiler import Compiler

        if self._compiler is None:
            self._compiler = self._stack.enter_context(Compiler(workers=1))
        return self._compiler.compile(operator, self._target)
