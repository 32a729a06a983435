"""The folder of a long run. One process at a time holds it; a later run resumes the work.

::

    <folder>/lock             which process runs it
    <folder>/journal.sqlite   every step and every result
    <folder>/live.json        the run's progress
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml.durable.files import remove_folder, remove_leftovers, sync_folder, writing
from tapml.runs.events import Note, Watcher, ignore
from tapml.runs.journal import FORMAT, JOURNAL, PASSED_OVER, Journal
from tapml.runs.journal_schema import UPGRADED
from tapml.runs.kind import RunKind
from tapml.runs.live_file import LiveFile
from tapml.runs.lock import LOCK, RunLock
from tapml.runs.phases import Phases
from tapml.runs.progress import Progress
from tapml_targets.errors import InputError

RUN: Final = "run"
"""Kind of the event that starts a run."""


@dataclass(frozen=True)
class Run:
    """A run that holds its folder. `watcher` updates the live file, too."""

    journal: Journal
    watcher: Watcher
    phases: Phases


class RunFolder:
    """A folder that keeps the results of long work; `path` need not exist yet."""

    def __init__(self, path: Path, kind: RunKind) -> None:
        self.path = path
        self.kind = kind
        self.lock = RunLock(path / LOCK)

    @property
    def exists(self) -> bool:
        """Whether the folder holds a journal."""
        return (self.path / JOURNAL).is_file()

    def begin(self, **settings: str) -> None:
        """Create the folder and its journal with some settings, or update the settings.

        Raises
        ------
        InputError
            If the folder has other files, or belongs to another kind of work.
        SetupError
            If it cannot be written, or another process holds it.
        """
        # A process that was killed here may have left only its lock.
        if (
            not self.exists
            and self.path.exists()
            and any(each.name != LOCK for each in self.path.iterdir())
        ):
            raise InputError(f"{self.path} has other files; choose an empty folder")
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            sync_folder(self.path.resolve().parent)
        with self.lock.hold(), self.open_journal() as journal:
            journal.write_setting(FORMAT, self.kind.format)
            for name, value in settings.items():
                journal.write_setting(name, value)

    def open_journal(self) -> Journal:
        """Open the journal; raises as :class:`~tapml.runs.journal.Journal` does."""
        return Journal(self.path / JOURNAL, self.kind)

    def remove(self) -> None:
        """Remove the folder. Raises SetupError if another process holds it, or removal fails."""
        with self.lock.hold():
            remove_folder(self.path.resolve())

    @contextmanager
    def run(
        self, progress: Progress | None = None, watcher: Watcher = ignore, **facts: Any
    ) -> Iterator[Run]:
        """Hold the folder while the block runs its work.

        First reports how the last run ended and what happened to the journal since.

        Parameters
        ----------
        progress
            Progress for the live file; default: phases only.
        watcher
            Receives the events.
        facts
            JSON data about this run, for the journal.

        Raises
        ------
        InputError
            If the journal cannot be read.
        SetupError
            If another process holds the folder, or it cannot be written.
        """
        with self.lock.hold() as died, self.open_journal() as journal:
            remove_leftovers(self.path)
            with LiveFile(self.path, progress or Progress(), watcher) as live:
                if died is not None:
                    live(Note(f"the previous run was interrupted: {died}"))
                for text in since_last_run(journal):
                    live(Note(text))
                journal.append(RUN, **facts, process=os.getpid())
                yield Run(journal, live, Phases(live, journal))
                for text in _newly_passed_over(journal):
                    live(Note(text))


def since_last_run(journal: Journal) -> list[str]:
    """What other commands did to the journal since the last run, one sentence each.

    Any command that opens an old journal upgrades it.
    """
    notes: list[str] = []
    for _, kind, data in journal.events():
        if kind == RUN:
            notes.clear()
        elif kind == UPGRADED:
            copy = journal.path.with_name(data["copy"])
            notes.append(
                f"the journal was upgraded from schema {data['from']} to {data['to']}; {copy} is "
                "a copy of the old one"
            )
    return notes


def _newly_passed_over(journal: Journal) -> list[str]:
    """Skipped rows that no run has reported yet; each is reported once."""
    reported = {text for _, _, data in journal.events(PASSED_OVER) for text in data["rows"]}
    rows = [text for text in journal.passed_over if text not in reported]
    if rows:
        journal.append(PASSED_OVER, rows=rows)
    return rows
