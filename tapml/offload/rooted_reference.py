"""The reference: a model's plan, compared with PyTorch (rooted) before anything relies on it.

It runs on the processor, in this process, or on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from tapml.compiler.compiler import Compiler
from tapml.compiler.reference_module import ReferenceModule
from tapml.execute.device_reference import (
    DeviceReference,
    platform_of,
    reference_identity,
    reference_name,
)
from tapml.importing.cache import PlanCache
from tapml.importing.imported import ImportedModel
from tapml.importing.importer import import_model
from tapml.models.huggingface import load_any
from tapml.models.loaded import Loaded
from tapml.offload.reference_device import open_operators
from tapml.plan.plan_notes import notes_of
from tapml.plan.rooting_report import RootingReport
from tapml.rooting.rooting import root
from tapml.runs.events import Note
from tapml.runs.phases import Phase, Phases
from tapml.session.journal import HOST
from tapml.session.settings import Settings
from tapml.workloads import workload_of
from tapml_rpc.client import Session
from tapml_targets.errors import InputError, MismatchError
from tapml_targets.limits import Limits

# Rooting runs prefill and then one decode step.
_ROOTING_TOKENS: Final = 3
# Rooting keeps every value of both runs; attention's grow with the square of the prompt.
_MOST_ROOTING_TOKENS: Final = 128


@dataclass(frozen=True)
class RootedReference:
    """A model whose plan agrees with PyTorch at every operator and in its outputs.

    `natural_dtype` is the model's dtype on a device that supports it.
    """

    model: Loaded
    cases: tuple[Any, ...]
    imported: ImportedModel
    reference: ReferenceModule | DeviceReference
    rooting: RootingReport
    natural_dtype: str

    @property
    def platform(self) -> str:
        """What the reference runs on, for tables of times."""
        return platform_of(self.reference)

    @property
    def logit_deviation(self) -> float:
        """Largest difference between the plan's first outputs and PyTorch's."""
        first = {(e.name, e.outputs[0]) for e in self.imported.plan.entries.values()}
        return max(
            each.error
            for each in self.rooting.compared
            if each.kind == "output" and (each.entry, each.value) in first
        )


def open_rooted_reference(
    settings: Settings,
    phases: Phases,
    *,
    limits: Limits | None = None,
    every_entry: bool = False,
    unseen: Callable[[], None] = lambda: None,
    imported: Callable[[ImportedModel], None] | None = None,
    on: Session | None = None,
    compiler: Compiler | None = None,
) -> RootedReference:
    """Load, import, compile and root a model.

    Parameters
    ----------
    settings
        The model and its cases.
    phases
        Announces and times the steps.
    limits
        The target device's limits; without float16, a float16 checkpoint becomes float32.
    every_entry
        Whether the cases must run every entry, so that every operator has a test.
    unseen
        Called before the model is imported, if its plan is not cached.
    imported
        Called with the imported model, to start other work early.
    on
        The device that is the reference; None for this process.
    compiler
        Compiles for that device; None for one of its own.

    Raises
    ------
    InputError
        If the model cannot be loaded or a case does not fit.
    UnsupportedOperatorError
        If the model cannot be imported.
    MismatchError
        If the plan does not agree with PyTorch, on the reference.
    ReferenceFailedError
        If the reference's device has no kernel for an operator, or fails.
    """
    cache = PlanCache()
    with phases.phase("load model", group="overhead", platform=HOST, once=True) as phase:
        model, natural_dtype = _load(settings, limits, phase, on)
        workload = workload_of(model)
        given = settings.prompts, settings.tokens, settings.prompt_count
        cases = workload.cases(model, *given)
        workload.check(cases, settings.new_tokens, every_entry=every_entry)
        phase.detail = f"{model.name}, {model.dtype}, {model.size}"
    with phases.phase("import model", group="overhead", platform=HOST, once=True) as phase:
        result = import_model(model, cache=cache, begins=unseen)
        plan = result.plan
        sites = sum(len(entry.calls) for entry in plan.entries.values())
        phase.detail = f"{len(plan.operators)} operators at {sites} call sites"
    for note in (notes := notes_of(plan)):
        phases.watcher(Note(note))
    if notes:
        model = replace(model, notes=(*model.notes, *notes))
    if imported is not None:
        imported(result)
    reference = open_operators(plan, phases, on, compiler)
    with phases.phase("root in PyTorch", group="overhead", platform=HOST, once=True) as phase:
        long_enough = (c.token_ids for c in cases if len(c.token_ids) >= _ROOTING_TOKENS)
        prompt = next((tokens[:_MOST_ROOTING_TOKENS] for tokens in long_enough), None)
        try:
            rooting = root(
                model,
                result,
                reference=reference,
                prompt=prompt,
                cache=cache,
                device=_rooted_on(reference),
            )
        except MismatchError as error:
            if on is None:
                raise
            raise MismatchError(f"the reference {reference_name(on)} is wrong: {error}") from error
        worst = rooting.worst
        skipped = len(rooting.not_comparable)
        phase.detail = (
            f"{rooting.sites} call sites and all outputs equal PyTorch's"
            + (f", worst at {worst.ratio:.2g} of its bound" if worst else "")
            + (f"; {skipped} call sites have no counterpart in PyTorch" if skipped else "")
        )
    return RootedReference(model, cases, result, reference, rooting, natural_dtype)


def _rooted_on(reference: ReferenceModule | DeviceReference) -> str:
    """What a rooting depends on beside the plan; empty for this process."""
    if not isinstance(reference, DeviceReference):
        return ""
    return f"{reference_identity(reference)} {reference.kernels_hash}"


def _load(
    settings: Settings, limits: Limits | None, phase: Phase, on: Session | None
) -> tuple[Loaded, str]:
    """The model, and its dtype on devices that support it."""
    context = settings.context_length or None
    load = partial(
        load_any,
        settings.model,
        context_length=context,
        quantize=settings.quantize,
        mlc_llm=settings.mlc_llm,
        inputs=settings.inputs,
        trying=lambda number, names: phase.progress(number, detail=f"trying {names}"),
    )
    model = load(dtype=_dtype(settings.dtype))
    natural_dtype = model.dtype
    sides = ((settings.target, limits), (settings.reference, on and on.device.limits))
    lacking = [name for name, each in sides if each and "float16" not in each.features]
    if model.dtype == "float16" and lacking:
        if settings.dtype == "float16":
            raise InputError(
                f"--dtype float16: this {lacking[0]} device has no float16; choose another "
                "device (see tapml devices) or --dtype float32"
            )
        phase.watcher(Note("the device has no float16: the model runs as float32"))
        model = load(dtype="float32")
    for note in model.notes:
        phase.watcher(Note(note))
    return model, natural_dtype


def _dtype(name: str) -> Literal["auto", "float32", "float16"]:
    match name:
        case "auto" | "float32" | "float16":
            return name
    raise InputError(f"unknown model dtype {name!r}: expected auto, float32 or float16")
