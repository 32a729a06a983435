"""The trusted side of a session: as it was kept where that still holds, else rooted anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tapml.graph.imported import ImportedModel
from tapml.models.resolve import resolve_model
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.offload.events import Note
from tapml.offload.kept_model import KEPT, KeptModel, RootedModel, keep_model, open_kept
from tapml.offload.model_check import ReferenceTrace, trace_reference
from tapml.offload.phases import HOST, REFERENCE, Phases
from tapml_targets.errors import InputError, SetupError

if TYPE_CHECKING:
    from tapml.compiler.reference import ReferenceModule
    from tapml.execute.executor import Executor
    from tapml.models.prompts import Prompt
    from tapml.models.stored import StoredDecoder
    from tapml.offload.rooted_reference import RootedReference
    from tapml.offload.settings import Settings
    from tapml_targets.limits import Limits

TOKENIZER: Final = "tokenizer.json"


class Codec(Protocol):
    """Tokens to text: a tokenizer of the model's own or one read from its ``tokenizer.json``."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens."""


@dataclass(frozen=True)
class TrustedSide:
    """What the target is held against.

    Attributes
    ----------
    model
        Drives the model.
    notes
        What a user should know about it.
    prompts
        What it is run on.
    imported
        Its plan and weights.
    reference
        The plan's operators on this machine.
    plan_hash
        Identifies what the plan computes.
    open_codec
        Gives its tokenizer; None where it has none.
    kept
        What all of it comes from, where it was kept.
    rooted
        What all of it comes from, where it was rooted just now.
    """

    model: StoredDecoder
    notes: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    imported: ImportedModel
    reference: ReferenceModule
    plan_hash: str
    open_codec: Callable[[], Codec | None]
    kept: KeptModel | None = None
    rooted: RootedReference | None = None

    @property
    def rooting(self) -> dict[str, Any]:
        """What rooting found just now, as JSON data."""
        return {} if self.rooted is None else self.rooted.rooting.as_json()


def open_what_was_kept(folder: Path, settings: Settings, phases: Phases) -> KeptModel | None:
    """What the session's folder holds of its model; None where nothing does or it is outdated.

    Whoever watches is told why it cannot be used.

    Raises
    ------
    InputError
        If the model of a session that was rooted is gone.
    """
    if not (folder / KEPT).exists():
        return None
    model_folder = _model_folder(settings)
    reasons: list[str] = []
    kept = open_kept(folder, reasons.append, note=True)
    if kept is not None:
        reasons += filter(None, [_why_not(kept, settings, model_folder)])
    for reason in reasons:
        tell_anew(phases, reason)
    return None if reasons else kept


def misfit(kept: KeptModel, settings: Settings, limits: Limits) -> str:
    """Why a kept model is not the one that this device takes; empty where it is."""
    wanted = kept.natural_dtype if settings.dtype == "auto" else settings.dtype
    if wanted == "float16" and "float16" not in limits.features:
        if settings.dtype == "float16":
            return "the device has no float16"
        wanted = "float32"
    if kept.decoder.dtype == wanted:
        return ""
    return f"on this device the model runs as {wanted}, not as {kept.decoder.dtype}"


def tell_anew(phases: Phases, reason: str) -> None:
    """Say why what was kept is not used."""
    phases.watcher(Note(f"{reason}: the model is imported and rooted again"))


def as_kept(kept: KeptModel, phases: Phases) -> TrustedSide:
    """The trusted side from what was kept: neither torch nor TVM is imported."""
    for note in kept.notes:
        phases.watcher(Note(note))
    reference = None
    if kept.reference is not None:
        reference = kept.reference.load(kept.plan.operators.values())
    if reference is None:
        from tapml.compiler.reference import compile_reference

        with phases.phase("compile reference", group="overhead", platform="llvm", once=True) as at:
            reference = compile_reference(kept.plan)
            at.detail = REFERENCE
    return TrustedSide(
        model=kept.decoder,
        notes=kept.notes,
        prompts=tuple(each.prompt for each in kept.trace.prompts),
        imported=ImportedModel(kept.plan, kept.weights),
        reference=reference,
        plan_hash=kept.plan_hash,
        open_codec=lambda: _codec(kept),
        kept=kept,
    )


def rooted_anew(
    settings: Settings,
    phases: Phases,
    limits: Limits,
    unseen: Callable[[], None],
    imported: Callable[[ImportedModel], None],
) -> TrustedSide:
    """Load, import, compile and root the model; see :func:`open_rooted_reference`."""
    from tapml.graph.plan_format import plan_hash
    from tapml.offload.rooted_reference import open_rooted_reference

    rooted = open_rooted_reference(
        settings, phases, limits=limits, every_entry=True, unseen=unseen, imported=imported
    )
    model = rooted.model
    return TrustedSide(
        model=model.stored,
        notes=model.notes,
        prompts=rooted.prompts,
        imported=rooted.imported,
        reference=rooted.reference,
        plan_hash=plan_hash(rooted.imported.plan),
        open_codec=lambda: model.tokenizer,
        rooted=rooted,
    )


def trace_of(
    side: TrustedSide, executor: Executor, folder: Path, settings: Settings, phases: Phases
) -> ReferenceTrace:
    """The reference's run over the prompts: as it was kept, else made and kept with the rest."""
    if side.kept is not None:
        return side.kept.trace
    rooted = side.rooted
    assert rooted is not None  # noqa: S101 - one of the two it comes from
    trace = trace_reference(
        side.model, executor, side.prompts, settings.new_tokens, rooted.logit_deviation
    )
    with phases.phase("keep model", group="overhead", platform=HOST, once=True) as phase:
        to_keep = RootedModel(
            decoder=side.model,
            natural_dtype=rooted.natural_dtype,
            model_folder=rooted.model.source,
            notes=side.notes,
            plan=side.imported.plan,
            plan_hash=side.plan_hash,
            weights=side.imported.weights,
            trace=trace,
            logit_deviation=rooted.logit_deviation,
            sites=rooted.rooting.sites,
            reference=rooted.reference.stored,
            plain_tokenizer=_is_plain(rooted, trace),
        )
        phase.detail = "a resumed session begins with what is kept"
        try:
            keep_model(folder, settings.to_json(), to_keep)
        except (SetupError, OSError) as error:
            phase.detail = f"not kept, so that a resume takes longer ({error})"
    return trace


def _model_folder(settings: Settings) -> Path:
    try:
        return resolve_model(settings.model).resolve()
    except InputError as error:
        raise InputError(
            f"the model of this session is gone: {error}. Put it back, or begin anew with the "
            "model's new place (--model) and --restart"
        ) from error


def _why_not(kept: KeptModel, settings: Settings, model_folder: Path) -> str:
    if kept.settings != settings.to_json():
        return "the session's settings are others"
    if model_folder != kept.model_folder:
        return f"the model lies in {model_folder} now, not in {kept.model_folder}"
    return kept.outdated


def _codec(kept: KeptModel) -> Codec | None:
    if kept.plain_tokenizer:
        return JsonTokenizer.open(kept.model_folder / TOKENIZER)
    from tapml.models.text import load_codec

    return load_codec(kept.model_folder)


def _is_plain(rooted: RootedReference, trace: ReferenceTrace) -> bool:
    """Whether ``tokenizer.json`` alone gives the texts that the model's own tokenizer gives."""
    codec = rooted.model.tokenizer
    if codec is None:
        return False
    try:
        plain = JsonTokenizer.open(rooted.model.source / TOKENIZER)
        return all(
            plain.decode(tokens) == codec.decode(tokens)
            for each in trace.prompts
            for tokens in (each.prompt.token_ids, each.tokens)
        )
    except InputError:
        return False


def describe(kept: KeptModel) -> str:
    """What was opened, in a line."""
    plan = kept.plan
    sites = sum(len(entry.calls) for entry in plan.entries.values())
    return (
        f"as rooted on {kept.rooted.replace('T', ' ').replace('+00:00', ' UTC')}: "
        f"{len(plan.operators)} operators at {sites} call sites"
    )
