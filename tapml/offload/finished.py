"""A finished migration, opened to be run or packaged: with the base install alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from tapml.graph.plan import GraphPlan
from tapml.models.stored import StoredDecoder
from tapml.models.text import load_codec
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.offload.finished_folder import (
    FINISHED,
    LIBRARY,
    MODEL,
    PLAN,
    check_finished,
    read_report,
)
from tapml.offload.kept_model import KEPT, KeptModel, open_kept
from tapml.offload.lock import LOCK
from tapml.package.codecs import Codec, LibraryTokenizer
from tapml.package.manifest import ValidatedDevice
from tapml.package.runnable import Runnable
from tapml.package.sample import Sample
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
    sample
        One of the prompts with the target's tokens; None where the report has none.
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
    sample: Sample | None

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
            sample=self.sample,
        )

    def open_codec(self) -> Codec:
        """The model's tokenizer: the lightest reader that gives the session's own texts.

        Raises
        ------
        InputError
            If the model has none, or one that cannot be loaded.
        """
        file = self.model_folder / _TOKENIZER
        if file.is_file():
            for reader in (JsonTokenizer.open, LibraryTokenizer.open):
                try:
                    codec = reader(file)
                except InputError:
                    continue
                if self._agrees(codec):
                    return codec
        own = load_codec(self.model_folder)
        if own is None:
            raise InputError(
                f"{self.decoder.name} has no tokenizer, so it takes no text: give token ids "
                '(--tokens "1 2 3"), or put its tokenizer.json into the folder'
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
    prompts = [each.prompt for each in kept.trace.prompts]
    decoded = _decoded(report)
    return FinishedSession(
        decoder=kept.decoder,
        plan=kept.plan,
        library=library,
        weights=kept.weights,
        model_folder=kept.model_folder,
        validated=_device(report),
        verdict=_verdict(report),
        encoded=tuple((each.text, each.token_ids) for each in prompts if each.text is not None),
        decoded=decoded,
        # The target's run took the prompts in their order.
        sample=Sample.of(
            (prompt.token_ids, tokens) for prompt, (tokens, _) in zip(prompts, decoded, strict=True)
        )
        if len(prompts) == len(decoded)
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
        raise _damaged(folder, error) from error
    return library, moved


def _kept(folder: Path, moved: Mapping[str, Any]) -> KeptModel:
    """What the session keeps of its model, where that is what was moved."""
    reasons: list[str] = []
    kept = open_kept(folder, reasons.append, note=folder / LOCK)
    if kept is not None:
        decoder = kept.decoder
        found = {
            "dtype": decoder.dtype,
            "context_length": decoder.context_length,
            "weights_hash": decoder.weights_hash,
        }
        # One process wrote both, so that the same plan has the same bytes.
        if found == moved and _same(folder / FINISHED / PLAN, folder / KEPT / PLAN):
            return kept
        reasons.append(
            f"{folder / FINISHED} is damaged, or its model was imported again after it had finished"
        )
    why = reasons[0] if reasons else "it keeps nothing of its model, which an earlier tapml did not"
    raise InputError(
        f"the session in {folder} cannot be run as it is: {why}; go on with "
        f"`tapml offload --session {folder}`, which repeats what changed"
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


def _damaged(folder: Path, error: Exception) -> InputError:
    return InputError(
        f"{folder} is damaged, or of another version of tapml ({error}); go on with "
        f"`tapml offload --session {folder.parent}`, which makes it again"
    )
