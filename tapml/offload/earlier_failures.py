"""Failures that earlier runs of a session looked into: they stand as long as nothing changed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapml.localize.diagnosis import Diagnosis
from tapml_targets.errors import TapmlError

if TYPE_CHECKING:
    from tapml.offload.journal import Journal
    from tapml.offload.verdict_key import VerdictKey


@dataclass(frozen=True)
class EarlierFailure:
    """Why an operator failed, its repro folder and what localization found."""

    reason: str
    repro: Path
    diagnosis: Diagnosis | None


class EarlierFailures:
    """The latest failure of each operator.

    Parameters
    ----------
    journal
        Of the session.
    folder
        Where the session keeps its repro folders.
    """

    def __init__(self, journal: Journal, folder: Path) -> None:
        self._folder = folder
        self._latest: dict[str, dict[str, Any]] = {}
        self._times: dict[str, float] = {}
        for moment, _, data in journal.events("failed"):
            name = str(data.get("operator"))
            self._latest[name], self._times[name] = data, moment

    def of(self, operator: str, key: VerdictKey) -> EarlierFailure | None:
        """What was found out under `key`; None where nothing was, or its folder is gone."""
        data = self._latest.get(operator, {})
        folder = self._folder / operator
        if data.get("key") != key.hash or not folder.is_dir():
            return None
        try:
            found = data.get("diagnosis")
            diagnosis = None if found is None else Diagnosis.from_json(found)
        except TapmlError:
            return None
        return EarlierFailure(str(data.get("reason")), folder, diagnosis)

    def taken_back(self, operator: str, since: float) -> bool:
        """Whether it failed after `since`, and somebody has removed its repro folder.

        So a person has a verdict made again though nothing changed: a device may have bad days.
        """
        return self._times.get(operator, -inf) >= since and not (self._folder / operator).is_dir()
