"""The reference side of a session: the stored model if it is current, else rooted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from tapml.execute.device_reference import device_facts, identity_of, reference_identity
from tapml.importing.imported import ImportedModel
from tapml.models.resolve import resolve_model
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.offload.reference_device import open_operators
from tapml.runs.events import Note
from tapml.runs.phases import Phases
from tapml.session.journal import HOST
from tapml.session.kept_model import KEPT, KeptModel, RootedModel, keep_model, open_kept
from tapml.session.settings import Settings
from tapml.workloads import workload_of
from tapml.workloads.trace import ReferenceTrace
from tapml_targets.errors import InputError, SetupError

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.reference_module import ReferenceModule
    from tapml.execute.device_reference import DeviceReference
    from tapml.execute.executor import Executor
    from tapml.models.stored import StoredModel
    from tapml.models.text import Codec
    from tapml.offload.rooted_reference import RootedReference
    from tapml_rpc.client import Session
    from tapml_targets.limits import Limits

TOKENIZER: Final = "tokenizer.json"


@dataclass(frozen=True)
class ReferenceSide:
    """The reference that the target is compared with.

    Attributes
    ----------
    model
        Prepares the inputs of the model's entries.
    notes
        Sentences for the user.
    cases
        What it is run on.
    imported
        Its plan and weights.
    reference
        The plan's operators on the mature platform: this process, or a device.
    plan_hash
        Hash of what the plan computes.
    open_codec
        Opens its tokenizer; returns None if it has none.
    kept, rooted
        The source of all this: the stored model, or the model rooted in this run.
    """

    model: StoredModel
    notes: tuple[str, ...]
    cases: tuple[Any, ...]
    imported: ImportedModel
    reference: ReferenceModule | DeviceReference
    plan_hash: str
    open_codec: Callable[[], Codec | None]
    kept: KeptModel | None = None
    rooted: RootedReference | None = None

    @property
    def rooting(self) -> dict[str, Any]:
        """The rooting report of this run as JSON data."""
        return {} if self.rooted is None else self.rooted.rooting.as_json()


def load_kept_model(folder: Path, settings: Settings, phases: Phases) -> KeptModel | None:
    """The stored model of the session; None if there is none or, as is reported, it is outdated.

    Raises
    ------
    InputError
        If there is one, but the model's own folder is gone.
    """
    if not (folder / KEPT).exists():
        return None
    model_folder = _model_folder(settings)
    reasons: list[str] = []
    kept = open_kept(folder, reasons.append, note=True)
    if kept is not None:
        reasons += filter(None, [_why_not(kept, settings, model_folder)])
    for reason in reasons:
        announce_rebuild(phases, reason)
    return None if reasons else kept


def why_incompatible(
    kept: KeptModel, settings: Settings, limits: Limits, on: Session | None = None
) -> str:
    """Why the stored model cannot run on this target, or is another reference's; empty if it can.

    `on` is the device that is the reference; None for this process.
    """
    identity = identity_of(None if on is None else device_facts(on.device))
    if kept.reference_device != identity:
        return "the reference is another device, or has another driver or code generator"
    if on is not None and "float16" not in on.device.limits.features:
        limits = on.device.limits
    wanted = kept.natural_dtype if settings.dtype == "auto" else settings.dtype
    if wanted == "float16" and "float16" not in limits.features:
        if settings.dtype == "float16":
            return "the device has no float16"
        wanted = "float32"
    if kept.model.dtype == wanted:
        return ""
    return f"this device runs the model as {wanted}, not as {kept.model.dtype}"


def announce_rebuild(phases: Phases, reason: str) -> None:
    """Report why the stored model is not used."""
    phases.watcher(Note(f"{reason}: the model is imported and rooted again"))


def from_cache(
    kept: KeptModel,
    phases: Phases,
    on: Session | None = None,
    compiler: Compiler | None = None,
) -> ReferenceSide:
    """The reference side of a stored model, without importing torch or TVM.

    Parameters
    ----------
    on
        The device that is the reference; None for this process.
    compiler
        Compiles what is not cached for that device.
    """
    for note in kept.notes:
        phases.watcher(Note(note))
    reference: ReferenceModule | DeviceReference | None = None
    if kept.reference is not None and on is None:
        reference = kept.reference.load(kept.plan.operators.values())
    if reference is None:
        reference = open_operators(kept.plan, phases, on, compiler)
    return ReferenceSide(
        model=kept.model,
        notes=kept.notes,
        cases=tuple(each.case for each in kept.trace.cases),
        imported=ImportedModel(kept.plan, kept.weights),
        reference=reference,
        plan_hash=kept.plan_hash,
        open_codec=lambda: _codec(kept),
        kept=kept,
    )


def root_again(
    settings: Settings,
    phases: Phases,
    limits: Limits,
    unseen: Callable[[], None],
    imported: Callable[[ImportedModel], None],
    on: Session | None = None,
    compiler: Compiler | None = None,
) -> ReferenceSide:
    """Load, import, compile and root the model; see :func:`open_rooted_reference`."""
    from tapml.offload.rooted_reference import open_rooted_reference
    from tapml.plan.format import plan_hash

    rooted = open_rooted_reference(
        settings,
        phases,
        limits=limits,
        every_entry=True,
        unseen=unseen,
        imported=imported,
        on=on,
        compiler=compiler,
    )
    model = rooted.model
    return ReferenceSide(
        model=model.stored,
        notes=model.notes,
        cases=rooted.cases,
        imported=rooted.imported,
        reference=rooted.reference,
        plan_hash=plan_hash(rooted.imported.plan),
        open_codec=lambda: model.tokenizer,
        rooted=rooted,
    )


def trace_of(
    side: ReferenceSide, executor: Executor, folder: Path, settings: Settings, phases: Phases
) -> ReferenceTrace:
    """The reference's run over the cases: the stored one, or a new one, stored with the model."""
    if side.kept is not None:
        return side.kept.trace
    rooted = side.rooted
    assert rooted is not None  # noqa: S101 - without a stored model, there is a rooted one
    trace = workload_of(side.model).trace_all(
        executor, side.cases, settings.new_tokens, rooted.logit_deviation
    )
    trace.check_branches(side.imported.plan)
    with phases.phase("keep model", group="overhead", platform=HOST, once=True) as phase:
        to_keep = RootedModel(
            model=side.model,
            natural_dtype=rooted.natural_dtype,
            model_folder=rooted.model.source,
            beside=rooted.model.beside,
            notes=side.notes,
            plan=side.imported.plan,
            plan_hash=side.plan_hash,
            weights=side.imported.weights,
            trace=trace,
            logit_deviation=rooted.logit_deviation,
            sites=rooted.rooting.sites,
            reference=getattr(rooted.reference, "stored", None),
            reference_device=reference_identity(rooted.reference),
            plain_tokenizer=_is_plain(rooted, trace),
        )
        phase.detail = "stored for resumed sessions"
        try:
            keep_model(folder, settings.to_json(), to_keep)
        except (SetupError, OSError) as error:
            phase.detail = f"not stored, so a resumed session takes longer ({error})"
    return trace


def _model_folder(settings: Settings) -> Path:
    try:
        return resolve_model(settings.model).resolve()
    except InputError as error:
        raise InputError(
            f"the model of this session is gone: {error}. Put it back, or start again with its new "
            "location (--model) and --restart"
        ) from error


def _why_not(kept: KeptModel, settings: Settings, model_folder: Path) -> str:
    if replace(Settings.from_json(kept.settings), device=settings.device) != settings:
        return "the session's settings have changed"
    if model_folder != kept.model_folder:
        return f"the model is now in {model_folder}, not in {kept.model_folder}"
    return kept.outdated


def _codec(kept: KeptModel) -> Codec | None:
    if kept.plain_tokenizer:
        return JsonTokenizer.open(kept.model_folder / TOKENIZER)
    from tapml.models.codec_of_folder import load_codec

    return load_codec(kept.model_folder)


def _is_plain(rooted: RootedReference, trace: ReferenceTrace) -> bool:
    """Whether ``tokenizer.json`` decodes the trace like the model's own tokenizer."""
    codec = rooted.model.tokenizer
    if codec is None:
        return False
    try:
        plain = JsonTokenizer.open(rooted.model.source / TOKENIZER)
        return all(
            plain.decode(tokens) == codec.decode(tokens)
            for each in trace.cases
            for tokens in (each.case.token_ids, each.choices)
        )
    except InputError:
        return False


def describe(kept: KeptModel) -> str:
    """A line about the stored model."""
    plan = kept.plan
    sites = sum(len(entry.calls) for entry in plan.entries.values())
    return (
        f"rooted on {kept.rooted.replace('T', ' ').replace('+00:00', ' UTC')}: "
        f"{len(plan.operators)} operators at {sites} call sites"
    )
