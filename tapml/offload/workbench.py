"""What a running session holds open: device, model, plan, reference, suite, oracle, compilers.

Opened once per run, closed as a whole however the run ends. What takes long and does not depend on
each other overlaps: the first time kernels compile in child processes while the reference is rooted
and carved; later on the device comes up while what was kept is read, and compilers and oracle start
when a step asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tapml.carving.probing import Probing
from tapml.carving.suite import Suite
from tapml.compare.expectation_store import STORE_NAME
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compiler.compiler import Compiler
from tapml.execute.executor import Executor
from tapml.graph.imported import ImportedModel
from tapml.graph.plan import Operator
from tapml.kernels.written import OWN_FOLDER, WrittenKernels
from tapml.models.stored import StoredDecoder
from tapml.offload.compile_ahead import CompileAhead
from tapml.offload.device_facts import settle_self_test
from tapml.offload.events import Watcher
from tapml.offload.journal import Journal
from tapml.offload.kept_twins import KeptTwins
from tapml.offload.model_check import ReferenceTrace
from tapml.offload.phases import HOST, Phases
from tapml.offload.run_settings import kernel_folders, limits_of, lowered, policy_of
from tapml.offload.selection import check_patterns
from tapml.offload.session_device import SessionDevice
from tapml.offload.session_suite import open_suite
from tapml.offload.settings import RunOptions, Settings
from tapml.offload.trusted_side import (
    Codec,
    TrustedSide,
    as_kept,
    describe,
    misfit,
    open_what_was_kept,
    rooted_anew,
    tell_anew,
    trace_of,
)
from tapml_rpc.client import Session
from tapml_rpc.known_self_test import session_self_test
from tapml_targets.fingerprint import fingerprint
from tapml_targets.self_test.facts import SelfTest
from tapml_targets.target import Target


@dataclass(frozen=True)
class Workbench:
    """Everything a run works with; its device may be `elsewhere`, at an address or a tracker."""

    folder: Path
    settings: Settings
    journal: Journal
    phases: Phases
    watcher: Watcher
    session: Session
    elsewhere: bool
    target: Target
    fingerprint: str
    self_test: SelfTest | None
    model: StoredDecoder
    notes: tuple[str, ...]
    imported: ImportedModel
    executor: Executor
    trace: ReferenceTrace
    suite: Suite
    oracle: Oracle
    probing: Probing
    policy: Policy
    kernels: WrittenKernels
    compiler: Compiler
    compiled: CompileAhead
    open_codec: Callable[[], Codec | None]

    @cached_property
    def codec(self) -> Codec | None:
        """The model's tokenizer; None where it has none."""
        return self.open_codec()


@contextmanager
def open_workbench(
    folder: Path,
    settings: Settings,
    journal: Journal,
    watcher: Watcher,
    options: RunOptions,
    device: SessionDevice,
) -> Iterator[Workbench]:
    """Open everything a run needs, in the order in which a mistake shows soonest.

    Raises
    ------
    NoSuchDeviceError
        If the device does not exist.
    InputError
        If the model cannot be loaded or a prompt does not fit.
    UnsupportedOperatorError
        If the model cannot be imported.
    MismatchError
        If the reference itself does not agree with PyTorch.
    """
    phases = Phases(watcher, journal)
    with ExitStack() as stack:
        compiler = stack.enter_context(Compiler(workers=options.workers or None))
        begun = time.monotonic()
        kept = open_what_was_kept(folder, settings, phases)
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
            # Not in this session: a driver that crashes over it costs another, or a process.
            measured = session_self_test(session)
            self_test = settle_self_test(folder, session, measured, watcher)
        limits = limits_of(journal, options, settings.target, session.device.limits)
        target = Target(settings.target, limits=lowered(limits, options.memory_bytes))
        policy = policy_of(journal, options)
        background = _Background(stack, compiler, target, policy, folder)
        reason = "" if kept is None else misfit(kept, settings, limits)
        if reason:
            tell_anew(phases, reason)
        side: TrustedSide
        if kept is None or reason:

            def begin(imported: ImportedModel) -> None:
                # A slip in a pattern shows before minutes are spent on rooting and carving.
                check_patterns(imported.plan, options)
                background.begin_at_once(imported)

            # Kernels of a model that was imported before are most often there as well.
            side = rooted_anew(settings, phases, limits, compiler.warm_up, begin)
            journal.append("rooted", **side.rooting)
        else:
            background.begin(kept.plan.operators)
            side = as_kept(kept, phases)
        executor = Executor(side.imported.plan, side.imported.weights, side.reference, session)
        suite = stack.enter_context(open_suite(folder, settings, side, executor, phases))
        background.prefetch(suite, at_once=side.kept is None)
        yield Workbench(
            folder=folder,
            settings=settings,
            journal=journal,
            phases=phases,
            watcher=watcher,
            session=session,
            elsewhere=device.elsewhere,
            target=target,
            fingerprint=fingerprint(session.device),
            self_test=self_test,
            model=side.model,
            notes=side.notes,
            imported=side.imported,
            executor=executor,
            trace=trace_of(side, executor, folder, settings, phases),
            suite=suite,
            oracle=background.oracle,
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
    """What the plan alone is needed for: kernels and float64 expectations, beside all else.

    Closed with `stack`: first what makes threads end, then what waits for them.
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
        """The same for a model whose tests are still to be carved: everything will be needed."""
        self.begin(imported.plan.operators)
        self.oracle.warm_up()

    def prefetch(self, suite: Suite, *, at_once: bool) -> None:
        """Compute expectations ahead, now or as soon as one is asked for that is not there."""
        # The oracle reads in a thread of its own, so it gets a suite of its own, which must outlive
        # that thread.
        own_suite = self._stack.enter_context(Suite.open(suite.path))
        self._stack.callback(self.oracle.close)
        if at_once:
            self.oracle.prefetch(own_suite.tests())
        else:
            self.oracle.prefetch_when_asked(own_suite.tests)
