"""The trusted side: a model's plan on the CPU, rooted in PyTorch before anything is built on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tapml.compiler.reference import ReferenceModule, compile_reference
from tapml.execute.generate import check_lengths
from tapml.graph.cache import PlanCache
from tapml.graph.imported import ImportedModel
from tapml.graph.importer import import_model
from tapml.graph.rooting import root
from tapml.graph.rooting_report import RootingReport
from tapml.models import Prompt, calibration_prompts, prompt_from_text, prompt_from_tokens
from tapml.models.huggingface import load_model
from tapml.models.inputs import DECODE, PREFILL, entry_for
from tapml.models.loaded import LoadedModel
from tapml.offload.events import Note, Watcher
from tapml.offload.phases import HOST, REFERENCE, Phases
from tapml.offload.settings import Settings
from tapml_targets.errors import InputError
from tapml_targets.limits import Limits

# Rooting runs prefill and then one decode step.
_ROOTING_TOKENS: Final = 3
# It holds every value of both runs; attention's grow with the square of the prompt.
_MOST_ROOTING_TOKENS: Final = 128


@dataclass(frozen=True)
class RootedReference:
    """A model whose plan agrees with PyTorch, operator by operator and in its logits.

    `natural_dtype` is the model's where the device has it; see :func:`open_rooted_reference`.
    """

    model: LoadedModel
    prompts: tuple[Prompt, ...]
    imported: ImportedModel
    reference: ReferenceModule
    rooting: RootingReport
    natural_dtype: str

    @property
    def logit_deviation(self) -> float:
        """Largest difference between the plan's logits and PyTorch's."""
        logits = {(e.name, e.outputs[0]) for e in self.imported.plan.entries.values()}
        return max(
            each.error
            for each in self.rooting.compared
            if each.kind == "output" and (each.entry, each.value) in logits
        )


def open_rooted_reference(
    settings: Settings,
    phases: Phases,
    *,
    limits: Limits | None = None,
    every_entry: bool = False,
    unseen: Callable[[], None] = lambda: None,
    imported: Callable[[ImportedModel], None] | None = None,
) -> RootedReference:
    """Load, import, compile and root a model.

    Parameters
    ----------
    settings
        The model and its prompts.
    phases
        Announces and times the steps.
    limits
        The target device's; a float16 checkpoint becomes float32 where it has no float16.
    every_entry
        Whether the prompts must run every entry, so that no operator is left without a test.
    unseen
        Called before a model is imported whose plan is not kept from an earlier time.
    imported
        Called as soon as the plan is there, so that other work on it can begin.

    Raises
    ------
    InputError
        If the model cannot be loaded or a prompt does not fit.
    UnsupportedOperatorError
        If the model cannot be imported.
    MismatchError
        If the plan does not agree with PyTorch.
    """
    cache = PlanCache()
    with phases.phase("load model", group="overhead", platform=HOST, once=True) as phase:
        model, natural_dtype = _load(settings, limits, phases.watcher)
        prompts = _prompts(settings, model)
        if every_entry:
            _check_coverage(prompts, settings.new_tokens)
        phase.detail = f"{model.name}, {model.dtype}, context {model.context_length}"
    with phases.phase("import model", group="overhead", platform=HOST, once=True) as phase:
        result = import_model(model, cache=cache, begins=unseen)
        plan = result.plan
        sites = sum(len(entry.calls) for entry in plan.entries.values())
        phase.detail = f"{len(plan.operators)} operators at {sites} call sites"
    if imported is not None:
        imported(result)
    with phases.phase("compile reference", group="overhead", platform="llvm", once=True) as phase:
        reference = compile_reference(plan)
        phase.detail = REFERENCE
    with phases.phase("root in PyTorch", group="overhead", platform=HOST, once=True) as phase:
        long_enough = (p.token_ids for p in prompts if len(p.token_ids) >= _ROOTING_TOKENS)
        prompt = next((tokens[:_MOST_ROOTING_TOKENS] for tokens in long_enough), None)
        rooting = root(model, result, reference=reference, prompt=prompt, cache=cache)
        worst = rooting.worst
        skipped = len(rooting.not_comparable)
        phase.detail = (
            f"{rooting.sites} call sites and all outputs equal PyTorch's"
            + (f", worst at {worst.ratio:.2g} of its bound" if worst else "")
            + (f"; {skipped} call sites have no counterpart there" if skipped else "")
        )
    return RootedReference(model, prompts, result, reference, rooting, natural_dtype)


def _load(settings: Settings, limits: Limits | None, watcher: Watcher) -> tuple[LoadedModel, str]:
    """The model, and the dtype it has where the device has that."""
    context = settings.context_length or None
    model = load_model(settings.model, dtype=_dtype(settings.dtype), context_length=context)
    natural_dtype = model.dtype
    if model.dtype == "float16" and limits is not None and "float16" not in limits.features:
        if settings.dtype == "float16":
            raise InputError(
                f"--dtype float16: this {settings.target} device has no float16; choose another "
                "device (see tapml devices) or --dtype float32"
            )
        watcher(Note("the device has no float16: the model runs as float32"))
        model = load_model(settings.model, dtype="float32", context_length=context)
    for note in model.notes:
        watcher(Note(note))
    return model, natural_dtype


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


def _check_coverage(prompts: Sequence[Prompt], new_tokens: int) -> None:
    """Refuse prompts that leave an entry without a run, and so its operators without a test.

    Raises
    ------
    InputError
        Saying what to give instead.
    """
    if all(entry_for(len(prompt.token_ids)) == DECODE for prompt in prompts):
        raise InputError(
            "every prompt has a single token, so prefill would never run and its operators would "
            "have no test: give at least one prompt of two tokens or more"
        )
    if new_tokens == 1 and all(entry_for(len(p.token_ids)) == PREFILL for p in prompts):
        raise InputError(
            "--new-tokens 1: decode would never run and its operators would have no test; ask for "
            "two or more"
        )
