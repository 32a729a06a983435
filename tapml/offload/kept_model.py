"""What a session knows of its model once the reference is rooted, kept in its folder.

A later run, ``tapml run`` and ``tapml package`` take it from here: with numpy and msgpack alone,
without torch, transformers or TVM. What it was made from is recorded beside it; where that no
longer holds, the session loads, imports and roots the model again, and says why::

    <session>/model/kept.json         sizes, prompts, sources of weights, what all was made from
    <session>/model/plan.msgpack      the graph plan
    <session>/model/logits.safetensors   the reference's own, of every prompt
    <session>/model/weights.safetensors  weights that do not lie in the model's own files
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tapml.compiler.cache import generator_hash
from tapml.compiler.stored_reference import StoredReference, processor_identity
from tapml.durable.files import replace_folder, write_bytes
from tapml.graph import plan_format
from tapml.graph.cache import importer_hash
from tapml.graph.plan import GraphPlan
from tapml.models.stored import StoredDecoder
from tapml.offload.kept_trace import keep_trace, read_trace
from tapml.offload.kept_weights import Array, KeptWeights, keep_weights
from tapml.offload.lock import unheld
from tapml.offload.model_check import ReferenceTrace
from tapml.offload.model_files import FileRecord, look_again, read_records, record_files
from tapml_targets.errors import InputError, ProtocolError, SetupError
from tapml_targets.installed import COMPILER_DISTRIBUTIONS, package_version

KEPT: Final = "model"
"""The folder in a session's."""
FACTS: Final = "kept.json"
PLAN: Final = "plan.msgpack"
LOGITS: Final = "logits.safetensors"
WEIGHTS: Final = "weights.safetensors"
_FORMAT: Final = "tapml kept model/2"
_DISTRIBUTIONS: Final = (*COMPILER_DISTRIBUTIONS, "torch", "transformers")
_LARGEST_FACTS: Final = 256 << 20
_SHOWN: Final = 12


@dataclass(frozen=True)
class RootedModel:
    """What there is to keep of a model whose reference is rooted.

    Attributes
    ----------
    decoder
        Its sizes, and what drives it.
    natural_dtype
        The dtype it has where nobody asks for another and the device has it.
    model_folder
        Where it was loaded from.
    notes
        What a user should know about it, a sentence each.
    plan
        Its plan.
    plan_hash
        Identifies what the plan computes.
    weights
        The plan's weights by name, raw bits.
    trace
        The reference's run over the prompts.
    logit_deviation
        Largest difference between the reference's logits and PyTorch's.
    sites
        Call sites that were compared with PyTorch.
    reference
        Where the reference's code is; None where it is not kept.
    plain_tokenizer
        Whether ``tokenizer.json`` alone gives the model's texts, without ``transformers``.
    """

    decoder: StoredDecoder
    natural_dtype: str
    model_folder: Path
    notes: tuple[str, ...]
    plan: GraphPlan
    plan_hash: str
    weights: Mapping[str, Array]
    trace: ReferenceTrace
    logit_deviation: float
    sites: int
    reference: StoredReference | None
    plain_tokenizer: bool


@dataclass(frozen=True)
class KeptModel(RootedModel):
    """The same, as it was kept; :func:`open_kept` opens it.

    Attributes
    ----------
    rooted
        When the reference was rooted, ISO 8601, UTC.
    settings
        What the session was asked to do then.
    made_by
        Versions of what made it, by name.
    """

    rooted: str
    settings: str
    made_by: Mapping[str, str]

    @cached_property
    def outdated(self) -> str:
        """What would make the model anew differently today, with old and new; empty for nothing."""
        for name, now in made_by().items():
            before = self.made_by.get(name, "none")
            if now and before != now:
                return f"{name} {before} -> {now}"
        return ""


def keep_model(folder: Path, settings: str, model: RootedModel) -> None:
    """Keep a model in the session's folder, in place of what was kept there.

    Parameters
    ----------
    folder
        The session's.
    settings
        What the session was asked to do, as text.
    model
        What there is to keep.

    Raises
    ------
    SetupError
        If it cannot be written.
    """
    with replace_folder(folder / KEPT) as made:
        facts = {
            "format": _FORMAT,
            "rooted": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": settings,
            "made_by": made_by(),
            "decoder": model.decoder.to_json(),
            "natural_dtype": model.natural_dtype,
            "model_folder": str(model.model_folder.resolve()),
            "model_files": {
                name: record.to_json() for name, record in record_files(model.model_folder).items()
            },
            "notes": list(model.notes),
            "logit_deviation": model.logit_deviation,
            "sites": model.sites,
            "plan_hash": model.plan_hash,
            "plain_tokenizer": model.plain_tokenizer,
            "reference": None if model.reference is None else model.reference.to_json(),
            "trace": keep_trace(model.trace, made / LOGITS),
            "weights": keep_weights(
                model.weights, model.plan.weights, made / WEIGHTS, model.model_folder
            ),
        }
        write_bytes(made / PLAN, plan_format.pack(model.plan))
        facts["files"] = {
            name: FileRecord.of(made / name).to_json() for name in (PLAN, LOGITS, WEIGHTS)
        }
        write_bytes(made / FACTS, _sealed(facts))


def open_kept(
    folder: Path, tell: Callable[[str], None] | None = None, *, note: bool | Path = False
) -> KeptModel | None:
    """Open what a session keeps of its model.

    Parameters
    ----------
    folder
        The session's.
    tell
        Called with the reason where there is a kept model that cannot be used: it is damaged, or
        the model's files have changed.
    note
        Whether files that had another time and the same content, for somebody copied them, are
        noted with their time, so that the next to open it does not hash them again. For whoever
        holds the session; its lock file for who does not, and notes where nobody else does.

    Returns
    -------
    KeptModel or None
        None where nothing is kept or it cannot be used. Whether today's versions would make it
        anew differently is for the caller to ask (:attr:`KeptModel.outdated`).
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
    match facts:
        case {
            "format": str(found),
            "rooted": str(rooted),
            "settings": str(settings),
            "made_by": dict(made_by),
            "natural_dtype": str(natural_dtype),
            "model_folder": str(model_folder),
            "notes": [*notes],
            "logit_deviation": float(logit_deviation),
            "sites": int(sites),
            "plan_hash": str(plan_hash),
            "plain_tokenizer": bool(plain_tokenizer),
            "weights": dict(sources),
        } if found == _FORMAT:
            pass
        case _:
            raise InputError(f"{kept / FACTS} is of another version: expected {_FORMAT}")
    folder = Path(model_folder)
    noted = read_records(facts.get("model_files"))
    changed, seen = look_again(folder, noted)
    if changed:
        raise InputError(f"in the model's folder {folder} {changed}")
    written = read_records(facts.get("files"))
    files = dict(written)
    for name, record in written.items():
        # Weights may be large: their content is looked at where the file's time says so.
        now = record.renewed(kept / name) if name == WEIGHTS else FileRecord.of(kept / name)
        if now is None or (now.size, now.sha256) != (record.size, record.sha256):
            raise InputError(f"{kept / name} is not what was written: it is damaged")
        if name == WEIGHTS:
            files[name] = now
    if note and (seen, files) != (noted, written):
        with nullcontext(True) if note is True else unheld(Path(note)) as ours:
            # Nobody has kept another model here since it was read.
            if ours and _unsealed(kept / FACTS) == facts:
                _note(kept, facts, model_files=seen, files=files)
    decoder = StoredDecoder.from_json(facts.get("decoder"))
    with _no_collection():
        plan = plan_format.unpack((kept / PLAN).read_bytes())
    reference = facts.get("reference")
    return KeptModel(
        decoder=decoder,
        natural_dtype=natural_dtype,
        model_folder=folder,
        notes=tuple(map(str, notes)),
        plan=plan,
        plan_hash=plan_hash,
        weights=KeptWeights(plan.weights, _sources(sources), kept / WEIGHTS, folder),
        trace=read_trace(facts.get("trace"), kept / LOGITS, decoder),
        logit_deviation=logit_deviation,
        sites=sites,
        reference=None if reference is None else StoredReference.from_json(reference),
        plain_tokenizer=plain_tokenizer,
        rooted=rooted,
        settings=settings,
        made_by={str(name): str(version) for name, version in made_by.items()},
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Leave the garbage alone: of the hundred thousand objects of a plan none is any."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _note(kept: Path, facts: Mapping[str, Any], **records: Mapping[str, FileRecord]) -> None:
    """Write the facts again with other records of files."""
    plain = {
        key: {name: record.to_json() for name, record in each.items()}
        for key, each in records.items()
    }
    # Where it cannot be written, the next to open it hashes them again.
    with suppress(SetupError):
        write_bytes(kept / FACTS, _sealed({**facts, **plain}))


def _sources(data: Mapping[object, object]) -> dict[str, tuple[str, str]]:
    sources: dict[str, tuple[str, str]] = {}
    for name, place in data.items():
        match name, place:
            case str(weight), [str(file), str(tensor)] if Path(file).name == file:
                sources[weight] = file, tensor
            case _:
                raise InputError(f"it is not said where the weight {str(name)[:80]!r} lies")
    return sources


def made_by() -> dict[str, str]:
    """What the kept things depend on, by name; empty text for what is not installed here."""
    versions = {name: package_version(name) or "" for name in _DISTRIBUTIONS}
    return versions | {
        "tapml's import": importer_hash()[:_SHOWN],
        "tapml's code generator": generator_hash("cpu")[:_SHOWN],
        "the processor": hashlib.sha256(processor_identity().encode()).hexdigest()[:_SHOWN],
    }


def _sealed(facts: Mapping[str, Any]) -> bytes:
    """The facts as JSON, a line with their hash before them."""
    text = json.dumps(facts, allow_nan=False, separators=(",", ":")).encode()
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def _unsealed(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_FACTS:
        raise InputError(f"{path} is larger than {_LARGEST_FACTS} bytes: it is damaged")
    digest, _, text = path.read_bytes().partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise InputError(f"{path} is damaged: it is not what was written")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: it is not JSON") from error
    if not isinstance(facts, dict):
        raise InputError(f"{path} is damaged: expected a JSON object")
    return facts
