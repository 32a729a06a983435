"""The subject of mutation: a model's operators, carved and compiled, and their device."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.carved_model import compile_all
from scripts.started_browser import wait_for_device
from tapml.carving.record import carve
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.devices.reach import open_device
from tapml.execute.executor import Executor
from tapml.offload.rooted_reference import open_rooted_reference
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.expectation_store import store_of
from tapml.oracles.oracle import Oracle
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import Operator
from tapml.replaying.memory import ReplayMemory
from tapml.runs.events import ignore
from tapml.runs.phases import Phases
from tapml.session.settings import Settings
from tapml.suite.carved_test import CarvedTest
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library
from tapml_targets.target import Target

# A right kernel of these models takes milliseconds; a wrong one may never end.
KERNEL_SECONDS: Final = 20.0
# Their names, after the operations that were fused, tell of sums and the like.
_REDUCTION: Final = re.compile(r"mean|softmax|argmax|max|norm|cumsum|sum")


@dataclass(frozen=True)
class Subject:
    """Carved tests and everything needed to replay them.

    Attributes
    ----------
    operators
        Their definitions, by name.
    libraries
        The right kernels by operator, in graph order.
    tests
        The tests that are replayed, by operator.
    probing, policy
        They judge replays; `probing` adds the probes that narrow dtypes need.
    """

    operators: Mapping[str, Operator]
    libraries: dict[str, Library]
    tests: Mapping[str, Sequence[CarvedCase]]
    probing: Probing
    policy: Policy


def carve_suite(settings: Settings, folder: Path) -> None:
    """Carve a model as ``tapml carve`` does."""
    rooted = open_rooted_reference(settings, Phases(ignore), every_entry=True)
    executor = Executor(rooted.imported.plan, rooted.imported.weights, rooted.reference)
    carve(rooted.model, executor, rooted.cases, folder, max_new_tokens=settings.new_tokens).close()


@contextmanager
def open_subject(
    folder: Path,
    device: DeviceDescription,
    *,
    per_operator: int | None = None,
    compiled: Path | None = None,
    most: int | None = None,
    options: tuple[tuple[str, str], ...] = (),
) -> Iterator[Subject]:
    """Open a suite and compile its operators for a device.

    Parameters
    ----------
    folder
        The suite.
    device
        Where they will run.
    per_operator
        Most tests of one operator; None for all.
    compiled
        Cache of Libraries; None for the user's cache.
    most
        Most operators, those first whose threads exchange values; None for all.
    options
        Of the code generator.

    Raises
    ------
    CompileError
        If an operator does not compile.
    """
    policy = Policy()
    target = Target(device.platform, options, device.limits)
    with Suite.open(folder) as suite, Compiler(compiled) as compiler:
        tests: dict[str, list[CarvedTest]] = {}
        for test in suite.tests():
            tests.setdefault(test.operator, []).append(test)
        if most is not None:
            first = sorted(tests, key=lambda name: not _REDUCTION.search(name))[:most]
            tests = {name: found for name, found in tests.items() if name in first}
        libraries = compile_all(compiler, [suite.operators[name] for name in tests], target)
        with Oracle(suite.operators, compile_twins, policy, cache=store_of(suite.path)) as oracle:
            chosen = {name: spread(found, per_operator) for name, found in tests.items()}
            probing = Probing(oracle, lambda: compile_reference(suite.operators.values()))
            yield Subject(suite.operators, libraries, chosen, probing, policy)


def spread(tests: Sequence[CarvedCase], most: int | None) -> tuple[CarvedCase, ...]:
    """At most `most` tests, evenly over prompts, steps and layers: the first, the last, between."""
    if most is None or len(tests) <= most:
        return tuple(tests)
    if most == 1:
        return (tests[0],)
    last = len(tests) - 1
    return tuple(tests[round(position * last / (most - 1))] for position in range(most))


class Device:
    """A device that is reopened after a kernel has killed it; a context manager.

    Parameters
    ----------
    description
        Which.
    cache
        Cache of its server.
    """

    def __init__(self, description: DeviceDescription, cache: Path) -> None:
        self.description = description
        self._cache = cache
        self._session: Session | None = None
        self._memory: ReplayMemory | None = None

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def session(self) -> Session:
        """The open session."""
        if self._session is None:
            self._session = self._open()
        return self._session

    @property
    def memory(self) -> ReplayMemory:
        """Buffers that the session's replays share."""
        if self._memory is None:
            self._memory = ReplayMemory(self.session)
        return self._memory

    def close(self) -> None:
        """End the session, alive or not; the next use opens another."""
        session, self._session, self._memory = self._session, None, None
        if session is not None:
            session.close()

    def _open(self) -> Session:
        # Wrong kernels stay out of the user's cache.
        return open_local(
            self.description,
            kernel_deadline=KERNEL_SECONDS,
            environ={"TAPML_CACHE_DIR": str(self._cache)},
        )


class FarDevice(Device):
    """A device of a tracker, which waits for the device's page if it is away.

    Parameters
    ----------
    description
        Which.
    spec
        ``tracker:NAME``; the tracker is the environment's.
    """

    def __init__(self, description: DeviceDescription, spec: str) -> None:
        super().__init__(description, Path())
        self._spec = spec

    def _open(self) -> Session:
        wait_for_device(os.environ["TAPML_TRACKER"], self._spec.partition(":")[2])
        return open_device(self._spec, kernel_deadline=KERNEL_SECONDS)
