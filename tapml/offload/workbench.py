"""What a running session holds open: device, model, plan, reference, suite, oracle, compilers.

Opened once per run, closed as a whole however the run ends. What takes long and does not depend on
each other overlaps: kernels compile in child processes while the reference is rooted and carved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tapml.carve.record import CarveProgress, carve
from tapml.carve.suite import Suite
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import ReferenceModule, compile_reference
from tapml.compiler.twin import compile_twins
from tapml.execute.executor import Executor
from tapml.execute.generate import check_lengths
from tapml.graph.importer import ImportedModel, import_model
from tapml.graph.plan_format import plan_hash
from tapml.graph.rooting import root
from tapml.models import Prompt, calibration_prompts, prompt_from_text, prompt_from_tokens
from tapml.models.huggingface import load_model
from tapml.models.loaded import LoadedModel
from tapml.offload.compile_ahead import CompileAhead
from tapml.offload.events import Note, Watcher
from tapml.offload.journal import Journal, verdict_key
from tapml.offload.model_check import ReferenceTrace, trace_reference
from tapml.offload.phases import Phase, Phases
from tapml.offload.settings import RunOptions, Settings
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError
from tapml_targets.fingerprint import fingerprint
from tapml_targets.target import Target

SUITE: Final = "suite"
ORACLE: Final = "oracle.sqlite"
REFERENCE: Final = "CPU, LLVM in process"
HOST: Final = "host"
ROOTING_TOKENS: Final = 3


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
    policy: Policy
    compiled: CompileAhead


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
            session = stack.enter_context(open_local(settings.device or settings.target))
            device = session.device
            phase.detail = f"{device.name} ({device.vendor_platform})"
        with phases.phase("load model", group="overhead", platform=HOST, once=True) as phase:
            model = _load(settings, "float16" in device.limits.features, watcher)
            prompts = _prompts(settings, model)
            phase.detail = f"{model.name}, {model.dtype}, context {model.context_length}"
        with phases.phase("import model", group="overhead", platform=HOST, once=True) as phase:
            imported = import_model(model)
            plan = imported.plan
            sites = sum(len(entry.calls) for entry in plan.entries.values())
            phase.detail = f"{len(plan.operators)} operators at {sites} call sites"
        target = Target(settings.target, limits=device.limits)
        compiled = CompileAhead(compiler, tuple(plan.operators.values()), target)
        stack.callback(compiled.close)
        with phases.phase(
            "compile reference", group="overhead", platform="llvm", once=True
        ) as phase:
            reference = compile_reference(plan)
            phase.detail = REFERENCE
        deviation = _root(model, imported, reference, prompts, journal, phases)
        executor = Executor(plan, imported.weights, reference, session)
        suite = stack.enter_context(_suite(folder, settings, model, executor, prompts, phases))
        trace = trace_reference(model, executor, prompts, settings.new_tokens, deviation)
        policy = Policy()
        oracle = stack.enter_context(
            Oracle(plan.operators, compile_twins, policy, cache=folder / ORACLE)
        )
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
            policy=policy,
            compiled=compiled,
        )


def _load(settings: Settings, device_has_float16: bool, watcher: Watcher) -> LoadedModel:
    context = settings.context_length or None
    model = load_model(settings.model, dtype=_dtype(settings.dtype), context_length=context)
    if model.dtype == "float16" and not device_has_float16:
        if settings.dtype == "float16":
            raise InputError(
                f"--dtype float16: this {settings.target} device has no float16; choose another "
                "device (see tapml devices) or --dtype float32"
            )
        watcher(Note("the device has no float16: the model runs as float32"))
        model = load_model(settings.model, dtype="float32", context_length=context)
    for note in model.notes:
        watcher(Note(note))
    return model


def _dtype(name: str) -> Literal["auto", "float32", "float16"]:
    match name:
        case "auto" | "float32" | "float16":
            return name
    raise InputError(f"unknown model dtype {name!r}: expected auto, float32 or float16")


def _prompts(settings: Settings, model: LoadedModel) -> tuple[Prompt, ...]:
    given = (
        *(prompt_from_text(model, text) for text in settings.prompts),
        *(prompt_from_tokens(model, tokens) for tokens in settings.tokens),
    )
    prompts = given or calibration_prompts(model, settings.prompt_count)
    for prompt in prompts:
        check_lengths(model, len(prompt.token_ids), settings.new_tokens)
    return prompts


def _root(
    model: LoadedModel,
    imported: ImportedModel,
    reference: ReferenceModule,
    prompts: tuple[Prompt, ...],
    journal: Journal,
    phases: Phases,
) -> float:
    """Root the reference in PyTorch; return how far apart their logits are."""
    # Rooting runs prefill and then one decode step, so it needs three tokens; else it takes its own.
    prompt = next((p.token_ids for p in prompts if len(p.token_ids) >= ROOTING_TOKENS), None)
    key = verdict_key(
        stage="rooting",
        plan=plan_hash(imported.plan),
        weights=model.weights_hash,
        prompt=str(prompt),
        versions=str(sorted(imported.plan.metadata.items())),
    )
    known = journal.verdict(key)
    if known is not None:
        return _deviation(known.data, imported)
    with phases.phase(
        "root in PyTorch", group="overhead", platform=HOST, once=True
    ) as phase:
        report = root(model, imported, reference=reference, prompt=prompt)
        worst = report.worst
        phase.detail = f"{report.sites} call sites and all outputs equal PyTorch's" + (
            f", worst at {worst.ratio:.2g} of its bound" if worst else ""
        )
    data = report.as_json()
    journal.record(key, "rooting", model.name, "pass", data)
    return _deviation(data, imported)


def _deviation(rooting: dict[str, Any], imported: ImportedModel) -> float:
    """Largest error of the logits; the other outputs of an entry are its state."""
    logits = {(entry.name, entry.outputs[0]) for entry in imported.plan.entries.values()}
    return max(
        float(each["error"])
        for each in rooting["outputs"]
        if (each["entry"], each["value"]) in logits
    )


def _suite(
    folder: Path,
    settings: Settings,
    model: LoadedModel,
    executor: Executor,
    prompts: tuple[Prompt, ...],
    phases: Phases,
) -> Suite:
    path = folder / SUITE
    if path.exists():
        suite = Suite.open(path)
        if suite.facts["plan_hash"] == plan_hash(executor.plan) and (
            suite.facts["weights_hash"] == model.weights_hash
        ):
            return suite
        suite.close()
    with phases.phase("carve tests", group="overhead", platform="llvm", once=True) as phase:
        total = len(prompts) * settings.new_tokens
        suite = carve(
            model,
            executor,
            prompts,
            path,
            max_new_tokens=settings.new_tokens,
            budget_bytes=settings.budget_bytes,
            progress=_carving(phase, total, settings.new_tokens),
            overwrite=path.exists(),
        )
        phase.detail = f"{suite.facts['tests']} tests from {len(prompts)} prompts"
    return suite


def _carving(phase: Phase, total: int, steps: int) -> Callable[[CarveProgress], None]:
    def tell(at: CarveProgress) -> None:
        phase.progress(at.prompt * steps + at.step + 1, total, f"{at.tests} tests")

    return tell
