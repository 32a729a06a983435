"""The resources of a run: device, model, plan, reference, suite, oracle and compilers.

They are opened once per run and closed together. Slow independent steps overlap: in the first run,
kernels compile in child processes while the reference is rooted and tests are carved; in later
runs, the device starts while the stored model is read, and compilers and oracle start on demand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tapml.compiler.compiler import Compiler
from tapml.devices.self_test import session_self_test
from tapml.execute.device_reference import executor_on, reference_facts, reference_identity
from tapml.execute.executor import Executor
from tapml.importing.imported import ImportedModel
from tapml.kernels.written import OWN_FOLDER, WrittenKernels
from tapml.models.stored import StoredModel
from tapml.models.text import Codec
from tapml.offload.compile_ahead import CompileAhead
from tapml.offload.reference_device import opened_reference
from tapml.offload.reference_side import (
    ReferenceSide,
    announce_rebuild,
    describe,
    from_cache,
    load_kept_model,
    root_again,
    trace_of,
    why_incompatible,
)
from tapml.offload.session_suite import open_suite
from tapml.oracles.expectation_store import STORE_NAME
from tapml.oracles.oracle import Oracle
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import Operator
from tapml.runs.events import Watcher
from tapml.runs.journal import Journal
from tapml.runs.phases import Phases
from tapml.session.device import SessionDevice
from tapml.session.device_facts import record_self_test
from tapml.session.journal import HOST
from tapml.session.kept_twins import KeptTwins
from tapml.session.run_settings import kernel_folders, limits_of, policy_of, with_memory_limit
from tapml.session.selection import check_patterns
from tapml.session.settings import RunOptions, Settings
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml.workloads import workload_of
from tapml.workloads.trace import ReferenceTrace
from tapml.workloads.workload import Workload
from tapml_rpc.client import Session
from tapml_targets.description import fingerprint
from tapml_targets.self_test.facts import SelfTest
from tapml_targets.target import Target


@dataclass(frozen=True)
class MigrationContext:
    """All resources of a run."""

    folder: Path
    settings: Settings
    journal: Journal
    phases: Phases
    watcher: Watcher
    session: Session
    is_remote: bool
    target: Target
    fingerprint: str
    self_test: SelfTest | None
    model: StoredModel
    notes: tuple[str, ...]
    imported: ImportedModel
    executor: Executor
    trace: ReferenceTrace
    suite: Suite
    probing: Probing
    policy: Policy
    kernels: WrittenKernels
    compiler: Compiler
    compiled: CompileAhead
    open_codec: Callable[[], Codec | None]

    @cached_property
    def workload(self) -> Workload[Any]:
        """What the model is run on and compared by."""
        return workload_of(self.model)

    @property
    def reference_identity(self) -> str:
        """Identifies the device that is the reference, for keys; empty for this process."""
        return reference_identity(self.executor.reference)

    @cached_property
    def codec(self) -> Codec | None:
        """The model's tokenizer; None if it has none."""
        return self.open_codec()


@contextmanager
def open_context(
    folder: Path,
    settings: Settings,
    journal: Journal,
    watcher: Watcher,
    options: RunOptions,
    device: SessionDevice,
) -> Iterator[MigrationContext]:
    """Open everything a run needs, in the order that reveals mistakes soonest.

    Raises
    ------
    NoSuchDeviceError
        If the device does not exist.
    InputError
        If the model cannot be loaded or a prompt does not fit.
    UnsupportedOperatorError
        If the model cannot be imported.
    MismatchError
        If the reference does not agree with PyTorch.
    """
    phases = Phases(watcher, journal)
    with ExitStack() as stack:
        compiler = stack.enter_context(Compiler(workers=options.workers or None))
        begun = time.monotonic()
        kept = load_kept_model(folder, settings, phases)
        if kept is not None:
            phases.record(
                "open model", time.monotonic() - begun, group="overhead", platform=HOST, once=True,
                detail=describe(kept),
            )  # fmt: skip
        with phases.phase(
            "open device", group="rooting", platform=settings.target, once=True
        ) as phase:
            session = device.open(watcher)
            phase.detail = f"{session.device.name} ({session.device.vendor_platform})"
            # In another session: a driver may crash over it.
            measured = session_self_test(session)
            self_test = record_self_test(folder, session, measured, watcher)
        # The target first: its absence is the more likely mistake.
        on = stack.enter_context(opened_reference(settings, phases, journal))
        limits = limits_of(journal, options, settings.target, session.device.limits)
        target = Target(settings.target, limits=with_memory_limit(limits, options.memory_bytes))
        policy = policy_of(journal, options)
        background = _Background(stack, compiler, target, policy, folder)
        reason = "" if kept is None else why_incompatible(kept, settings, limits, on)
        if reason:
            announce_rebuild(phases, reason)
        side: ReferenceSide
        if kept is None or reason:

            def begin(imported: ImportedModel) -> None:
                # Report mistyped patterns before minutes of rooting and carving.
                check_patterns(imported.plan, options)
                background.begin_at_once(imported)

            # Warm up only for a plan that is not cached: else the kernels probably are cached.
            side = root_again(
                settings, phases, limits, compiler.warm_up, begin, on=on, compiler=compiler
            )
            journal.append("rooted", **side.rooting, reference=reference_facts(side.reference))
        else:
            background.begin(kept.plan.operators)
            side = from_cache(kept, phases, on, compiler)
        plan, weights = side.imported.plan, side.imported.weights
        executor = executor_on(plan, weights, side.reference, session)
        suite = stack.enter_context(open_suite(folder, settings, side, executor, phases))
        background.prefetch(suite, at_once=side.kept is None)
        trace = trace_of(side, executor, folder, settings, phases)
        if side.rooted is not None:
            from tapml.offload.quantization_error import record_quantization

            record_quantization(side.rooted.model, trace, journal, watcher)
        yield MigrationContext(
            folder=folder,
            settings=settings,
            journal=journal,
            phases=phases,
            watcher=watcher,
            session=session,
            is_remote=device.is_remote,
            target=target,
            fingerprint=fingerprint(session.device),
            self_test=self_test,
            model=side.model,
            notes=side.notes,
            imported=side.imported,
            executor=executor,
            trace=trace,
            suite=suite,
            probing=Probing(background.oracle, lambda: side.reference),
            policy=policy,
            kernels=WrittenKernels(
                (folder / OWN_FOLDER, *kernel_folders(journal, options)), target
            ),
            compiler=compiler,
            compiled=background.compiled,
            open_codec=side.open_codec,
        )


class _Background:
    """Background work that needs only the plan: kernels and float64 expectations.

    `stack` closes it: first it stops the threads, then it waits for them.
    """

    compiled: CompileAhead
    oracle: Oracle

    def __init__(
        self, stack: ExitStack, compiler: Compiler, target: Target, policy: Policy, folder: Path
    ) -> None:
        self._stack = stack
        self._compiler = compiler
        self._target = target
        self._policy = policy
        self._folder = folder

    def begin(self, operators: Mapping[str, Operator]) -> None:
        """Look kernels up; whatever is not there yet starts when it is asked for."""
        self.compiled = CompileAhead(self._compiler, tuple(operators.values()), self._target)
        self._stack.callback(self.compiled.close)
        # Closed first, so that the thread that waits for it ends.
        self._stack.callback(self._compiler.close)
        self.oracle = self._stack.enter_context(
            Oracle(
                operators, KeptTwins(self._folder), self._policy, cache=self._folder / STORE_NAME
            )
        )

    def begin_at_once(self, imported: ImportedModel) -> None:
        """Begin for a new model, whose kernels and expectations will all be needed."""
        self.begin(imported.plan.operators)
        self.oracle.warm_up()

    def prefetch(self, suite: Suite, *, at_once: bool) -> None:
        """Compute expectations ahead, now or from the first one that is not stored."""
        # The oracle reads in another thread, so it needs another Suite, which must outlive it.
        own_suite = self._stack.enter_context(Suite.open(suite.path))
        self._stack.callback(self.oracle.close)
        if at_once:
            self.oracle.prefetch(own_suite.tests())
        else:
            self.oracle.prefetch_when_asked(own_suite.tests)
