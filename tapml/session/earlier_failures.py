"""Failures that earlier runs diagnosed; they are reused as long as nothing changed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapml.failures.diagnosis import Diagnosis
from tapml.verdicts.verdict import Cause
from tapml_targets.errors import TapmlError

if TYPE_CHECKING:
    from tapml.runs.journal import Journal
    from tapml.runs.result_key import ResultKey


@dataclass(frozen=True)
class EarlierFailure:
    """Why an operator failed, its repro folder and its diagnosis."""

    cause: Cause
    reason: str
    repro: Path
    diagnosis: Diagnosis | None


class EarlierFailures:
    """The latest failure of each operator; `folder` has the session's repro folders."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self._folder = folder
        self._latest: dict[str, dict[str, Any]] = {}
        self._times: dict[str, float] = {}
        for moment, _, data in journal.events("failed"):
            name = str(data.get("operator"))
            self._latest[name], self._times[name] = data, moment

    def of(self, operator: str, key: ResultKey) -> EarlierFailure | None:
        """The failure under `key`; None if there is none or its repro folder is gone.

        Failures without a cause, from older sessions, are not reused.
        """
        data = self._latest.get(operator, {})
        folder = self._folder / operator
        if data.get("key") != key.hash or not folder.is_dir():
            return None
        try:
            found = data.get("diagnosis")
            diagnosis = None if found is None else Diagnosis.from_json(found)
            cause = Cause(data.get("cause", Cause.NONE))
        except (TapmlError, ValueError):
            return None
        if cause == Cause.NONE:
            return None
        return EarlierFailure(cause, str(data.get("reason")), folder, diagnosis)

    def was_dismissed(self, operator: str, since: float) -> bool:
        """Whether the operator failed after `since` and its repro folder was removed.

        Users do that to have a verdict made again although nothing changed.
        """
        return self._times.get(operator, -inf) >= since and not (self._folder / operator).is_dir()
