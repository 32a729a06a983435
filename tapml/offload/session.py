"""OffloadSession: a migration on disk that can be run, interrupted, resumed and reported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml.carving.lost import rephrased
from tapml.durable.files import remove_folder, remove_left, sync_folder, writing
from tapml.offload import events
from tapml.offload.journal import Journal
from tapml.offload.journal_schema import MIGRATED
from tapml.offload.live import LiveState
from tapml.offload.lock import LOCK, hold
from tapml.offload.session_device import DEVICE, SessionDevice
from tapml.offload.settings import RunOptions, Settings
from tapml_rpc.reach import is_remote
from tapml_targets.errors import EXIT_MISMATCH, DeviceLostError, InputError

JOURNAL: Final = "journal.sqlite"
_SETTINGS: Final = "settings"
_FORMAT: Final = "tapml-session/1"
_PASSED_OVER: Final = "passed over"
# Without --bind a server takes whichever port is free.
_SERVED_THERE: Final = "serve it at that address again (`tapml rpc serve --bind`), "


@dataclass(frozen=True)
class SessionResult:
    """How a run ended.

    Attributes
    ----------
    status
        ``pass``, ``degraded``, ``fail``, ``incomplete`` (operators left on the source), ``not run``
        (every operator passes and the device is too small for the model).
    exit_code
        What the command line returns.
    text
        One line for a person.
    report
        The data of ``report.json``.
    report_path
        The HTML page.
    """

    status: str
    exit_code: int
    text: str
    report: dict[str, Any]
    report_path: Path


class OffloadSession:
    """A migration in a folder.

    Attributes
    ----------
    folder
        Where it lives.
    settings
        What it was asked to do.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings

    @classmethod
    def create(cls, folder: str | Path, settings: Settings) -> OffloadSession:
        """Begin a session in an empty or new folder.

        Raises
        ------
        InputError
            If the folder holds a session or other files.
        SetupError
            If it cannot be written.
        """
        path = Path(folder)
        # A process killed on its way here may have left its lock.
        if path.exists() and any(each.name != LOCK for each in path.iterdir()):
            what = "a session" if is_session(path) else "other files"
            raise InputError(f"{path} holds {what}; choose an empty folder, or open the session")
        return cls._begin(path, settings)

    @classmethod
    def _begin(cls, path: Path, settings: Settings) -> OffloadSession:
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.resolve().parent)
        with hold(path / LOCK), Journal(path / JOURNAL) as journal:
            journal.write_setting("format", _FORMAT)
            journal.write_setting(_SETTINGS, settings.to_json())
        return cls(path, settings)

    @classmethod
    def open(cls, folder: str | Path) -> OffloadSession:
        """Open a session that exists.

        Raises
        ------
        InputError
            If the folder holds no session, or one of another version.
        """
        path = Path(folder)
        if not is_session(path):
            raise InputError(
                f"{path} is not a session: expected a folder made by `tapml offload --session`"
            )
        with Journal(path / JOURNAL) as journal:
            text = journal.read_setting(_SETTINGS)
        if text is None:
            raise InputError(
                f"{path} holds a session that was never begun; begin it with "
                f"`tapml offload --session {path}`"
            )
        try:
            return cls(path, Settings.from_json(text))
        except InputError as error:
            raise InputError(
                f"{error} (setting {_SETTINGS!r} in {path / JOURNAL}); begin anew in another "
                "folder (--session), or here with --restart"
            ) from error

    @classmethod
    def create_or_open(
        cls,
        folder: str | Path,
        settings: Settings,
        *,
        given: Mapping[str, Any],
        restart: bool = False,
    ) -> OffloadSession:
        """Open the session in a folder, or begin one.

        A session that never came as far as a rooted reference is begun again where its settings
        are not the ones wanted now: a mistake on the command line is corrected by a second try.

        Parameters
        ----------
        folder
            Where.
        settings
            For a new session.
        given
            The settings a person named; an existing session must agree with them.
        restart
            Delete what is there first.

        Raises
        ------
        InputError
            If the session there was begun with other settings; they are named. If `restart` would
            delete kernels that somebody wrote.
        """
        path = Path(folder)
        if is_session(path) and restart:
            _spare_kernels(path)
            with hold(path / LOCK):
                remove_folder(path.resolve())
        if not is_session(path):
            return cls.create(path, settings)
        with Journal(path / JOURNAL) as journal:
            begun = journal.read_setting(_SETTINGS) is not None
            rooted = any(journal.events("rooted"))
        if not begun:
            return cls._begin(path, settings)
        session = cls.open(path)
        for name, value in given.items():
            have = getattr(session.settings, name)
            if have != value and not rooted:
                return cls._begin(path, settings)
            if have != value:
                raise InputError(
                    f"the session in {path} was begun with {name} = {_said(have)}, not "
                    f"{_said(value)}; {_SERVED_THERE if _is_address(name, have) else ''}"
                    "choose another folder (--session), or begin anew here with --restart"
                )
        return session

    def run(
        self,
        watcher: events.Watcher = events.ignore,
        options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    ) -> SessionResult:
        """Run Algorithm 1 of the paper from where the journal ends.

        Parameters
        ----------
        watcher
            Called with every event (:mod:`tapml.offload.events`), on this thread.
        options
            How to go about it.

        Returns
        -------
        SessionResult
            Also where operators failed: a mismatch is a result, not an error.

        Raises
        ------
        TapmlError
            If the session cannot go on: no device, a lost device, a full disk, a model that
            cannot be imported. What was journaled is kept.
        """
        with hold(self.folder / LOCK) as died, Journal(self.folder / JOURNAL) as journal:
            remove_left(self.folder)
            with LiveState(self.folder, watcher) as live:
                if died is not None:
                    live(events.Note(f"the run before did not end by itself: {died}"))
                for text in _since_last_run(journal):
                    live(events.Note(text))
                journal.append("run", options=options.to_json(), process=os.getpid())
                try:
                    report, page = self._run(journal, live, options)
                except DeviceLostError as error:
                    journal.append("lost", error=type(error).__name__, message=str(error))
                    go_on = f"go on with `tapml offload --session {self.folder}`"
                    device = journal.read_setting(DEVICE) or ""
                    when = f"once {device} answers, " if is_remote(device) else ""
                    after = f"; what was journaled is kept: {when}{go_on}"
                    raise rephrased(error, after=after) from error
                journal.append("ended", status=report["outcome"]["status"])
                for text in _newly_passed_over(journal):
                    live(events.Note(text))
        status = str(report["outcome"]["status"])
        return SessionResult(
            status,
            0 if status == "pass" else EXIT_MISMATCH,
            str(report["outcome"]["text"]),
            report,
            page,
        )

    def _run(
        self, journal: Journal, watcher: events.Watcher, options: RunOptions
    ) -> tuple[dict[str, Any], Path]:
        # The device comes up while the rest is imported and opened.
        with SessionDevice(self.settings, journal) as device:
            from tapml.offload.migration import migrate
            from tapml.offload.workbench import open_workbench

            with open_workbench(
                self.folder, self.settings, journal, watcher, options, device
            ) as bench:
                return migrate(bench, options)


def _is_address(name: str, value: object) -> bool:
    return name == "device" and "://" in str(value)


def is_session(folder: Path) -> bool:
    """Whether a folder holds a session's journal."""
    return (folder / JOURNAL).is_file()


def _since_last_run(journal: Journal) -> list[str]:
    """What whoever opened the journal since the last run has done to it, a sentence each.

    A migration leaves an event: any command may be the first to open an old journal.
    """
    told: list[str] = []
    for _, kind, data in journal.events():
        if kind == "run":
            told.clear()
        elif kind == MIGRATED:
            copy = journal.path.with_name(data["copy"])
            told.append(
                f"the journal was migrated from schema {data['from']} to {data['to']}; as it was, "
                f"it lies in {copy}"
            )
    return told


def _newly_passed_over(journal: Journal) -> list[str]:
    """Rows that no run has named yet: they stay where they are, and are told once."""
    told = {text for _, _, data in journal.events(_PASSED_OVER) for text in data["rows"]}
    rows = [text for text in journal.passed_over if text not in told]
    if rows:
        journal.append(_PASSED_OVER, rows=rows)
    return rows


def _spare_kernels(folder: Path) -> None:
    """Refuse to delete what nobody can make again."""
    from tapml.kernels.written import OWN_FOLDER

    kernels = folder / OWN_FOLDER
    if any(each.is_file() for each in kernels.rglob("*")):
        raise InputError(
            f"{kernels} holds kernels written by hand, and --restart would delete them: move the "
            "folder elsewhere first (--kernels FOLDER finds them there)"
        )


def _said(setting: object) -> str:
    """A setting as a message shows it; what was not given is empty or 0."""
    return repr(setting) if setting else "the default"
