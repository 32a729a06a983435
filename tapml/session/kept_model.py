"""The model of a session after its reference is rooted, stored in the session's folder.

A later run, ``tapml run`` and ``tapml package`` load it with only numpy and msgpack, without torch,
transformers or TVM. Its dependencies are recorded beside it. If one has changed, the session loads,
imports and roots the model again, and reports why::

    <session>/model/kept.json            sizes, cases, sources of weights, dependencies
    <session>/model/plan.msgpack         the graph plan
    <session>/model/logits.safetensors   the reference's outputs for every case
    <session>/model/weights.safetensors  weights that are not in the model's own files
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import msgspec

from tapml.compiler.cache import generator_hash
from tapml.compiler.reference_module import StoredReference, processor_identity
from tapml.durable.files import replace_folder, write_bytes
from tapml.importing.cache import importer_hash
from tapml.models.stored import StoredModel, decode_hook
from tapml.plan import format as plan_format
from tapml.plan.graph_plan import GraphPlan
from tapml.runs.lock import RunLock
from tapml.session.kept_trace import KeptCases, keep_trace, read_trace
from tapml.session.kept_weights import Array, KeptWeights, keep_weights
from tapml.session.model_files import FileName, FileRecord, FileRecords, compare_files, record_files
from tapml.workloads.trace import ReferenceTrace
from tapml_targets.errors import InputError, ProtocolError, SetupError
from tapml_targets.installed import COMPILER_DISTRIBUTIONS, package_version

KEPT: Final = "model"
"""The folder in the session's folder."""
FACTS: Final = "kept.json"
PLAN: Final = "plan.msgpack"
LOGITS: Final = "logits.safetensors"
WEIGHTS: Final = "weights.safetensors"
_FORMAT: Final[Literal["tapml kept model/3"]] = "tapml kept model/3"
_DISTRIBUTIONS: Final = (*COMPILER_DISTRIBUTIONS, "torch", "transformers")
_LARGEST_FACTS: Final = 256 << 20
_SHOWN: Final = 12


@dataclass(frozen=True)
class RootedModel:
    """A model whose reference is rooted.

    Attributes
    ----------
    model
        Its sizes, and the inputs of its entries.
    natural_dtype
        The dtype it has by default if the device supports it.
    model_folder
        The folder or file it was loaded from.
    beside
        Of a file, names of those that its tensors lie in.
    notes
        Sentences for the user.
    plan
        Its graph plan.
    plan_hash
        Hash of what the plan computes.
    weights
        The plan's weights by name, raw bits.
    trace
        The reference's run over the cases.
    logit_deviation
        Largest difference between the reference's logits and PyTorch's.
    sites
        Number of call sites that were compared with PyTorch.
    reference
        Where the reference's code is stored; None if it is not.
    plain_tokenizer
        Whether ``tokenizer.json`` is enough for the tokenizer, without ``transformers``.
    reference_device
        Identifies the device that is the reference, and its kernels; empty for this process.
    """

    model: StoredModel
    natural_dtype: str
    model_folder: Path
    beside: tuple[str, ...]
    notes: tuple[str, ...]
    plan: GraphPlan
    plan_hash: str
    weights: Mapping[str, Array]
    trace: ReferenceTrace
    logit_deviation: float
    sites: int
    reference: StoredReference | None
    plain_tokenizer: bool
    reference_device: str


@dataclass(frozen=True)
class KeptModel(RootedModel):
    """A stored model; :func:`open_kept` opens it.

    Attributes
    ----------
    rooted
        Time when the reference was rooted, ISO 8601, UTC.
    settings
        The session's settings at that time.
    made_by
        Versions of the software that made it, by name.
    """

    rooted: str
    settings: str
    made_by: Mapping[str, str]

    @cached_property
    def outdated(self) -> str:
        """Which dependency changed since (old -> new); empty if none did.

        If one did, importing the model again would give another result.
        """
        for name, now in made_by().items():
            before = self.made_by.get(name, "none")
            if now and before != now:
                return f"{name} {before} -> {now}"
        return ""


class _Facts(msgspec.Struct):
    """The content of ``kept.json``; see :class:`KeptModel`."""

    format: Literal["tapml kept model/3"]
    rooted: str
    settings: str
    made_by: dict[str, str]
    model: StoredModel
    natural_dtype: str
    model_folder: str
    model_files: FileRecords
    notes: tuple[str, ...]
    logit_deviation: float
    sites: int
    plan_hash: str
    plain_tokenizer: bool
    reference: StoredReference | None
    trace: KeptCases
    weights: dict[str, tuple[FileName, str]]
    files: FileRecords
    reference_device: str = ""


def keep_model(folder: Path, settings: str, model: RootedModel) -> None:
    """Store a model in the session's folder, replacing the stored one.

    Raises
    ------
    SetupError
        If it cannot be written.
    """
    with replace_folder(folder / KEPT) as made:
        write_bytes(made / PLAN, plan_format.pack(model.plan))
        trace = keep_trace(model.trace, made / LOGITS, model.model)
        weights = keep_weights(
            model.weights, model.plan.weights, made / WEIGHTS, model.model_folder
        )
        facts = _Facts(
            format=_FORMAT,
            rooted=datetime.now(UTC).isoformat(timespec="seconds"),
            settings=settings,
            made_by=made_by(),
            model=model.model,
            natural_dtype=model.natural_dtype,
            model_folder=str(model.model_folder.resolve()),
            model_files=record_files(model.model_folder, model.beside),
            notes=model.notes,
            logit_deviation=model.logit_deviation,
            sites=model.sites,
            plan_hash=model.plan_hash,
            plain_tokenizer=model.plain_tokenizer,
            reference_device=model.reference_device,
            reference=model.reference,
            trace=trace,
            weights=weights,
            files={name: FileRecord.of(made / name) for name in (PLAN, LOGITS, WEIGHTS)},
        )
        write_bytes(made / FACTS, _sealed(facts))


def open_kept(
    folder: Path, tell: Callable[[str], None] | None = None, *, note: bool | Path = False
) -> KeptModel | None:
    """Open the stored model of a session.

    Parameters
    ----------
    folder
        The session's folder.
    tell
        Called with the reason if the stored model cannot be used: it is damaged, or the model's
        files have changed.
    note
        Whether to update the recorded times of files that were copied but have the same content,
        so that they need not be hashed again. True requires that the caller holds the session.
        Otherwise pass the session's lock file: the update is skipped if a process holds it.

    Returns
    -------
    KeptModel or None
        None if there is no usable model. The caller must check :attr:`KeptModel.outdated`.
    """
    kept = folder / KEPT
    if not (kept / FACTS).is_file():
        return None
    try:
        return _read(kept, note=note)
    except (InputError, ProtocolError) as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.filename or kept}: {error.strerror}"
    if tell is not None:
        tell(reason)
    return None


def _read(kept: Path, *, note: bool | Path) -> KeptModel:
    facts = _unsealed(kept / FACTS)
    folder = Path(facts.model_folder)
    if not folder.exists():
        raise InputError(f"the model's folder {folder} is gone")
    changed, seen = compare_files(folder, facts.model_files)
    if changed:
        raise InputError(f"in the model's folder {folder} {changed}")
    files = dict(facts.files)
    for name, record in facts.files.items():
        # Weights may be large: hash them only if the file's time changed.
        now = record.refreshed(kept / name) if name == WEIGHTS else FileRecord.of(kept / name)
        if now is None or (now.size, now.sha256) != (record.size, record.sha256):
            raise InputError(f"{kept / name} is damaged: its content has changed")
        if name == WEIGHTS:
            files[name] = now
    if note and (seen, files) != (facts.model_files, facts.files):
        with nullcontext(True) if note is True else RunLock(Path(note)).keep_free() as ours:
            # Unless another process has stored another model since.
            if ours and _unsealed(kept / FACTS) == facts:
                # If it cannot be written, the next process hashes the files again.
                noted = msgspec.structs.replace(facts, model_files=seen, files=files)
                with suppress(SetupError):
                    write_bytes(kept / FACTS, _sealed(noted))
    with _no_collection():
        plan = plan_format.unpack((kept / PLAN).read_bytes())
    return KeptModel(
        model=facts.model,
        natural_dtype=facts.natural_dtype,
        model_folder=folder,
        beside=tuple(facts.model_files),
        notes=facts.notes,
        plan=plan,
        plan_hash=facts.plan_hash,
        weights=KeptWeights(plan.weights, facts.weights, kept / WEIGHTS, folder),
        trace=read_trace(facts.trace, kept / LOGITS, facts.model),
        logit_deviation=facts.logit_deviation,
        sites=facts.sites,
        reference=facts.reference,
        plain_tokenizer=facts.plain_tokenizer,
        reference_device=facts.reference_device,
        rooted=facts.rooted,
        settings=facts.settings,
        made_by=facts.made_by,
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause garbage collection: none of a plan's hundred thousand objects is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def made_by() -> dict[str, str]:
    """Dependencies of the stored model by name; empty text for what is not installed here."""
    versions = {name: package_version(name) or "" for name in _DISTRIBUTIONS}
    return versions | {
        "tapml's import": importer_hash()[:_SHOWN],
        "tapml's code generator": generator_hash("cpu")[:_SHOWN],
        "the processor": hashlib.sha256(processor_identity().encode()).hexdigest()[:_SHOWN],
    }


def _sealed(facts: _Facts) -> bytes:
    """The facts as JSON, after a line with their hash."""
    text = msgspec.json.encode(facts)
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def _unsealed(path: Path) -> _Facts:
    if path.stat().st_size > _LARGEST_FACTS:
        raise InputError(f"{path} is damaged: it is larger than {_LARGEST_FACTS} bytes")
    digest, _, text = path.read_bytes().partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise InputError(f"{path} is damaged: its content has changed")
    try:
        return msgspec.json.decode(text, type=_Facts, dec_hook=decode_hook)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} has another format, expected {_FORMAT} ({error})") from error
