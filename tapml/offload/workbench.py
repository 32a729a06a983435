"""What a running session holds open: device, model, plan, reference, suite, oracle, compilers.

Opened once per run, closed as a whole however the run ends. What takes long and does not depend on
each other overlaps: kernels compile in child processes while the reference is rooted and carved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tapml.carving.probing import Probing
from tapml.carving.record import CarveProgress, carve
from tapml.carving.suite import Suite
from tapml.compare.expectation_store import STORE_NAME
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compiler.compiler import Compiler
from tapml.compiler.twin import compile_twins
from tapml.durable.files import remove_folder
from tapml.execute.executor import Executor
from tapml.graph.imported import ImportedModel
from tapml.graph.plan_format import plan_hash
from tapml.kernels.written import OWN_FOLDER, WrittenKernels
from tapml.models import Prompt
from tapml.models.checkpoint import inspect_checkpoint
from tapml.models.loaded import LoadedModel
from tapml.models.resolve import resolve_model
from tapml.offload.compile_ahead import CompileAhead
from tapml.offload.events import Note, Watcher
from tapml.offload.journal import Journal
from tapml.offload.model_check import ReferenceTrace, trace_reference
from tapml.offload.phases import Phase, Phases
from tapml.offload.rooted_reference import open_rooted_reference
from tapml.offload.run_settings import kernel_folders, lowered, policy_of
from tapml.offload.settings import RunOptions, Settings
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError, NoSuchDeviceError
from tapml_targets.fingerprint import fingerprint
from tapml_targets.target import Target

SUITE: Final = "suite"
DEVICE: Final = "device"


@dataclass(frozen=True)
class Workbench:
    """Everything a run works with."""

    folder: Path
    settings: Settings
    journal: Journal
    phases: Phases
    watcher: Watcher
    session: Session
    target: Target
    fingerprint: str
    model: LoadedModel
    imported: ImportedModel
    executor: Executor
    trace: ReferenceTrace
    suite: Suite
    oracle: Oracle
    probing: Probing
    policy: Policy
    compiler: Compiler
    compiled: CompileAhead
    kernels: WrittenKernels


@contextmanager
def open_workbench(
    folder: Path,
    settings: Settings,
    journal: Journal,
    watcher: Watcher,
    options: RunOptions,
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
        compiler.warm_up()
        with phases.phase(
            "open device", group="rooting", platform=settings.target, once=True
        ) as phase:
            session = stack.enter_context(_open_device(settings, journal, watcher))
            device = session.device
            journal.write_setting(DEVICE, f"{device.platform}:{device.index}")
            phase.detail = f"{device.name} ({device.vendor_platform})"
        target = Target(settings.target, limits=lowered(device.limits, options.memory_bytes))
        policy = policy_of(journal, options)
        begun: list[tuple[CompileAhead, Oracle]] = []

        def begin(imported: ImportedModel) -> None:
            """What the plan alone is needed for goes on while the reference is rooted."""
            operators = imported.plan.operators
            compiled = CompileAhead(compiler, tuple(operators.values()), target)
            stack.callback(compiled.close)
            # Closed first, so that the thread that waits for it ends.
            stack.callback(compiler.close)
            oracle = stack.enter_context(
                Oracle(operators, compile_twins, policy, cache=folder / STORE_NAME)
            )
            oracle.warm_up()
            begun.append((compiled, oracle))

        rooted = open_rooted_reference(
            settings, phases, limits=device.limits, every_entry=True, imported=begin
        )
        compiled, oracle = begun[0]
        model, imported = rooted.model, rooted.imported
        journal.append("rooted", **rooted.rooting.as_json())
        executor = Executor(imported.plan, imported.weights, rooted.reference, session)
        suite = stack.enter_context(
            _suite(folder, settings, model, executor, rooted.prompts, phases)
        )
        trace = trace_reference(
            model, executor, rooted.prompts, settings.new_tokens, rooted.logit_deviation
        )
        # The oracle reads in a thread of its own, so it gets a suite of its own, which must outlive
        # that thread.
        own_suite = stack.enter_context(Suite.open(suite.path))
        stack.callback(oracle.close)
        oracle.prefetch(own_suite.tests())
        yield Workbench(
            folder=folder,
            settings=settings,
            journal=journal,
            phases=phases,
            watcher=watcher,
            session=session,
            target=target,
            fingerprint=fingerprint(device),
            model=model,
            imported=imported,
            executor=executor,
            trace=trace,
            suite=suite,
            oracle=oracle,
            probing=Probing(oracle, lambda: rooted.reference),
            policy=policy,
            kernels=WrittenKernels(
                (folder / OWN_FOLDER, *kernel_folders(journal, options)), target
            ),
            compiler=compiler,
            compiled=compiled,
        )


def _open_device(settings: Settings, journal: Journal, watcher: Watcher) -> Session:
    """The device that was named, else the session's own, else the best in the model's dtype.

    Two devices that rank alike may change places from run to run: a resumed session stays where it
    was, as long as there is such a device.
    """
    used = journal.read_setting(DEVICE)
    if used is not None and not settings.device:
        try:
            return open_local(used)
        except NoSuchDeviceError:
            watcher(Note(f"the session's device {used} is gone: the best of the others is used"))
    device = settings.device or settings.target
    dtype = settings.dtype
    if dtype == "auto":
        dtype = inspect_checkpoint(resolve_model(settings.model)).natural_dtype
    try:
        return open_local(device, dtype=dtype)
    except NoSuchDeviceError:
        if dtype == "float32":
            raise
        # No device has it: the model runs as float32, or says that it was told not to.
        return open_local(device)


def _suite(
    folder: Path,
    settings: Settings,
    model: LoadedModel,
    executor: Executor,
    prompts: tuple[Prompt, ...],
    phases: Phases,
) -> Suite:
    path = folder / SUITE
    known = _known_suite(path, model, executor)
    if known is not None:
        return known
    # Of another model, or damaged: the session made it and makes it again.
    remove_folder(path)
    with phases.phase("carve tests", group="overhead", platform="llvm", once=True) as phase:
        suite = carve(
            model,
            executor,
            prompts,
            path,
            max_new_tokens=settings.new_tokens,
            budget_bytes=settings.budget_bytes,
            progress=carving_progress(phase, len(prompts), settings.new_tokens),
        )
        phase.detail = f"{suite.facts['tests']} tests from {len(prompts)} prompts"
    return suite


def _known_suite(path: Path, model: LoadedModel, executor: Executor) -> Suite | None:
    """The session's suite, where it is whole and of this model."""
    if not path.exists():
        return None
    try:
        suite = Suite.open(path)
    except InputError:
        return None
    facts = suite.facts
    if suite.complete and (facts["plan_hash"], facts["weights_hash"]) == (
        plan_hash(executor.plan),
        model.weights_hash,
    ):
        return suite
    suite.close()
    return None


def carving_progress(phase: Phase, prompts: int, steps: int) -> Callable[[CarveProgress], None]:
    """Tell a phase how far a carve of so many prompts and steps is."""

    def tell(at: CarveProgress) -> None:
        phase.progress(at.prompt * steps + at.step + 1, prompts * steps, f"{at.tests} tests")

    return tell
