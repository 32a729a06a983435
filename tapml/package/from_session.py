"""A finished migration, opened to be run or packaged: with the base install alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from tapml.models.chat_template import read_chat_template
from tapml.models.codec_of_folder import load_codec
from tapml.models.resolve import home_of
from tapml.models.stored import StoredModel
from tapml.models.text import Codec
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.package.manifest import ValidatedDevice
from tapml.package.runnable import Runnable
from tapml.package.sample import Sample
from tapml.plan.graph_plan import GraphPlan
from tapml.runs.lock import LOCK
from tapml.session.folder import (
    FINISHED,
    LIBRARY,
    MODEL,
    PLAN,
    check_finished,
    read_report,
)
from tapml.session.kept_model import KEPT, KeptModel, open_kept
from tapml.workloads import workload_of
from tapml_targets import library_format
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.library import Library

Array = npt.NDArray[Any]

_TOKENIZER: Final = "tokenizer.json"
_VERDICT_NUMBERS: Final = ("operators", "moved", "tests", "tests_passed", "worst_ratio")


@dataclass(frozen=True)
class FinishedSession:
    """A session with every operator on the target that passed end to end.

    Without a session report, `validated` and `sample` are None and `verdict` is empty. `encoded`
    holds prompts with their first token ids, `decoded` the target's ids with their text.
    """

    model: StoredModel
    plan: GraphPlan
    library: Library
    weights: Mapping[str, Array]
    model_folder: Path
    validated: ValidatedDevice | None
    verdict: Mapping[str, Any]
    encoded: tuple[tuple[str, tuple[int, ...]], ...]
    decoded: tuple[tuple[tuple[int, ...], str], ...]
    sample: Sample | None

    @property
    def texts(self) -> tuple[str, ...]:
        """Prompts of the session, and what the target wrote."""
        return (*(text for text, _ in self.encoded), *(text for _, text in self.decoded))

    def runnable(self) -> Runnable:
        """What :class:`tapml.package.target_model.TargetModel` runs."""
        return Runnable(
            model=self.model,
            plan=self.plan,
            library=self.library,
            weights=self.weights,
            open_codec=self.open_codec,
            validated=self.validated,
            sample=self.sample,
            chat_template=read_chat_template(home_of(self.model_folder)),
        )

    def open_codec(self) -> Codec:
        """The model's tokenizer, without ``transformers`` where that gives the session's texts.

        Raises
        ------
        InputError
            If the model has none, or one that cannot be loaded.
        """
        file = self.model_folder / _TOKENIZER
        if file.is_file() and self._agrees(codec := JsonTokenizer.open(file)):
            return codec
        own = load_codec(self.model_folder)
        if own is None:
            raise InputError(
                f"{self.model.name} has no tokenizer, so it takes no text: give token ids "
                "(--tokens '1 2 3'), or put its tokenizer's file into the folder"
            )
        return own

    def _agrees(self, codec: Codec) -> bool:
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
    check_finished(folder)
    library, moved = _read(folder / FINISHED)
    report = read_report(folder)
    kept = _kept(folder, moved)
    workload = workload_of(kept.model)
    cases = [each.case for each in kept.trace.cases]
    decoded = _decoded(report)
    return FinishedSession(
        model=kept.model,
        plan=kept.plan,
        library=library,
        weights=kept.weights,
        model_folder=kept.model_folder,
        validated=_device(report),
        verdict=_verdict(report),
        encoded=tuple(pair for each in cases for pair in workload.texts(each)),
        decoded=decoded if workload.generates else (),
        # The target's run took the prompts in their order.
        sample=Sample.of(
            (case.token_ids, tokens) for case, (tokens, _) in zip(cases, decoded, strict=True)
        )
        if workload.generates and len(cases) == len(decoded)
        else None,
    )


def _read(folder: Path) -> tuple[Library, dict[str, Any]]:
    try:
        library = library_format.unpack((folder / LIBRARY).read_bytes())
        data = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        moved = {
            "dtype": str(data["dtype"]),
            "context_length": int(data["context_length"]),
            "weights_hash": str(data["weights_hash"]),
        }
    except (ProtocolError, OSError, ValueError, TypeError, KeyError) as error:
        raise _unreadable(folder, error) from error
    return library, moved


def _kept(folder: Path, moved: Mapping[str, Any]) -> KeptModel:
    """What the session keeps of its model, where that is what was moved."""
    reasons: list[str] = []
    kept = open_kept(folder, reasons.append, note=folder / LOCK)
    if kept is not None:
        model = kept.model
        found = {
            "dtype": model.dtype,
            "context_length": model.context_length,
            "weights_hash": model.weights_hash,
        }
        # One process wrote both, so that the same plan has the same bytes.
        if found == moved and _same(folder / FINISHED / PLAN, folder / KEPT / PLAN):
            return kept
        reasons.append(
            f"{folder / FINISHED} is damaged, or its model was imported again after it had finished"
        )
    why = reasons[0] if reasons else "it keeps nothing of its model, which an earlier tapml did not"
    raise InputError(
        f"the session in {folder} cannot be run as it is: {why}; continue with "
        f"`tapml offload --session {shlex.quote(str(folder))}`, which repeats what changed"
    )


def _same(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


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


def _unreadable(folder: Path, error: Exception) -> InputError:
    return InputError(
        f"{folder} is damaged, or of another version of tapml: {error}; "
        f"`tapml offload --session {folder.parent}` makes it again"
    )
