"""A finished migration, opened to be run or packaged: needs neither TVM nor torch where it is kept.

A session of before models were kept is opened as well; its model is loaded again, with torch.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tapml.graph import plan_format
from tapml.graph.plan import GraphPlan
from tapml.models.stored import StoredDecoder
from tapml.models.text import load_codec
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.offload.finished_folder import (
    CONSTANTS,
    FINISHED,
    LIBRARY,
    MODEL,
    PLAN,
    check_finished,
    read_report,
)
from tapml.offload.kept_model import KeptModel, open_kept
from tapml.package.codecs import Codec
from tapml.package.manifest import ValidatedDevice
from tapml.package.runnable import Runnable
from tapml_targets import library_format
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.library import Library

Array = npt.NDArray[Any]

_TOKENIZER: Final = "tokenizer.json"
_VERDICT_NUMBERS: Final = ("operators", "moved", "tests", "tests_passed", "worst_ratio")


@dataclass(frozen=True)
class FinishedSession:
    """A session whose every operator is on the target, and whose whole model passed there.

    Attributes
    ----------
    decoder
        The model's sizes.
    plan
        Its plan.
    library
        The plan's linked Library.
    weights
        The plan's weights by name; read when they are used.
    model_folder
        Where the model was loaded from.
    validated
        The device it passed on; None where the session's report is gone.
    verdict
        Status, one line, and numbers of the session's end; empty without a report.
    encoded
        Prompts of the session and their first token ids.
    decoded
        Token ids the target wrote at the session's end, and their text.
    """

    decoder: StoredDecoder
    plan: GraphPlan
    library: Library
    weights: Mapping[str, Array]
    model_folder: Path
    validated: ValidatedDevice | None
    verdict: Mapping[str, Any]
    encoded: tuple[tuple[str, tuple[int, ...]], ...]
    decoded: tuple[tuple[tuple[int, ...], str], ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Prompts of the session, and what the target wrote."""
        return (*(text for text, _ in self.encoded), *(text for _, text in self.decoded))

    def runnable(self) -> Runnable:
        """What :class:`tapml.package.target_model.TargetModel` runs."""
        return Runnable(
            decoder=self.decoder,
            plan=self.plan,
            library=self.library,
            weights=self.weights,
            open_codec=self.open_codec,
            validated=self.validated,
        )

    def open_codec(self) -> Codec:
        """The model's tokenizer: read here where that gives the session's own prompts.

        Raises
        ------
        InputError
            If the model has none, or one that cannot be loaded.
        """
        if (self.model_folder / _TOKENIZER).is_file():
            try:
                codec = JsonTokenizer.open(self.model_folder / _TOKENIZER)
            except InputError:
                pass
            else:
                if self._agrees(codec):
                    return codec
        own = load_codec(self.model_folder)
        if own is None:
            raise InputError(
                f"{self.decoder.name} has no tokenizer, so it takes no text: give token ids "
                '(--tokens "1 2 3"), or put its tokenizer.json into the folder'
            )
        return own

    def _agrees(self, codec: JsonTokenizer) -> bool:
        """Whether a tokenizer gives the session's prompts and the texts that it ended in."""
        return all(codec.encode(text)[: len(ids)] == ids for text, ids in self.encoded) and all(
            codec.decode(ids) == text for ids, text in self.decoded
        )


def open_finished(folder: Path) -> FinishedSession:
    """Open a session that has finished.

    Raises
    ------
    InputError
        If it has not ended with every operator on the target, what it wrote is damaged, or its
        model has changed.
    """
    session = check_finished(folder)
    plan, library, moved = _read(folder / FINISHED)
    report = read_report(folder)
    kept = open_kept(folder)
    if kept is not None and _fits(kept, plan, moved):
        decoder, weights, source = kept.decoder, kept.weights, kept.model_folder
        prompts = [each.prompt for each in kept.trace.prompts]
    else:
        decoder, weights, source = _load(folder, session.settings.model, plan, moved)
        prompts = []
    return FinishedSession(
        decoder=decoder,
        plan=plan,
        library=library,
        weights=weights,
        model_folder=source,
        validated=_device(report),
        verdict=_verdict(report),
        encoded=tuple((each.text, each.token_ids) for each in prompts if each.text is not None),
        decoded=_decoded(report),
    )


def _read(folder: Path) -> tuple[GraphPlan, Library, dict[str, Any]]:
    try:
        plan = plan_format.unpack((folder / PLAN).read_bytes())
        library = library_format.unpack((folder / LIBRARY).read_bytes())
        data = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        moved = {
            "dtype": str(data["dtype"]),
            "context_length": int(data["context_length"]),
            "weights_hash": str(data["weights_hash"]),
        }
    except (ProtocolError, OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(folder, error) from error
    return plan, library, moved


def _fits(kept: KeptModel, plan: GraphPlan, moved: Mapping[str, Any]) -> bool:
    """Whether what is kept of the model is what was moved."""
    decoder = kept.decoder
    return {
        "dtype": decoder.dtype,
        "context_length": decoder.context_length,
        "weights_hash": decoder.weights_hash,
    } == moved and plan_format.pack(kept.plan) == plan_format.pack(plan)


def _load(
    folder: Path, name: str, plan: GraphPlan, moved: Mapping[str, Any]
) -> tuple[StoredDecoder, Mapping[str, Array], Path]:
    """Load the model again, with torch."""
    from tapml.graph.importer import weights_of
    from tapml.models.huggingface import load_model

    dtype: Literal["float16", "float32"] = "float16" if moved["dtype"] == "float16" else "float32"
    model = load_model(name, dtype=dtype, context_length=moved["context_length"])
    if model.weights_hash != moved["weights_hash"]:
        raise InputError(
            f"the weights in {model.source} are not those that were moved; begin anew with "
            f"`tapml offload --session {folder} --restart`"
        )
    try:
        with np.load(folder / FINISHED / CONSTANTS, allow_pickle=False) as archive:
            constants = {each: archive[each] for each in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _damaged(folder / FINISHED, error) from error
    decoder = StoredDecoder(
        name=model.name,
        dtype=model.dtype,
        context_length=model.context_length,
        vocabulary=model.vocabulary,
        end_tokens=model.end_tokens,
        weights_hash=model.weights_hash,
    )
    return decoder, weights_of(model, plan, constants), model.source


def _device(report: Mapping[str, Any]) -> ValidatedDevice | None:
    names = [each.name for each in fields(ValidatedDevice)]
    target = report.get("target")
    if not isinstance(target, dict) or not all(isinstance(target.get(n), str) for n in names):
        return None
    return ValidatedDevice(**{name: target[name] for name in names})


def _verdict(report: Mapping[str, Any]) -> dict[str, Any]:
    match report:
        case {"outcome": {"status": str(status), "text": str(text)}, "summary": dict(summary)}:
            numbers = {name: summary.get(name) for name in _VERDICT_NUMBERS}
            final = report.get("final")
            more = {"final": final.get("text")} if isinstance(final, dict) else {}
            return {"status": status, "text": text, **numbers, **more}
    return {}


def _decoded(report: Mapping[str, Any]) -> tuple[tuple[tuple[int, ...], str], ...]:
    final = report.get("final")
    prompts = final.get("prompts") if isinstance(final, dict) else None
    found: list[tuple[tuple[int, ...], str]] = []
    for each in prompts if isinstance(prompts, list) else ():
        match each:
            case {"tokens": [*tokens], "text": str(text)} if all(type(t) is int for t in tokens):
                found.append((tuple(tokens), text))
    return tuple(found)


def _damaged(folder: Path, error: Exception) -> InputError:
    return InputError(f"{folder} is damaged ({error}); run `tapml offload` on the session again")
