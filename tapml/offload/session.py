"""OffloadSession: a migration in a folder, which can be run, interrupted and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tapml.devices.reach import is_remote
from tapml.replaying.failure_text import with_context
from tapml.runs.events import Watcher, ignore
from tapml.runs.folder import RunFolder
from tapml.runs.journal import JOURNAL, Journal
from tapml.session.device import DEVICE, SETTINGS, SessionDevice
from tapml.session.folder import is_session
from tapml.session.journal import SESSION, open_journal
from tapml.session.run_settings import DEVICE_LIMITS, profile_of
from tapml.session.run_state import RunState
from tapml.session.settings import RunOptions, Settings
from tapml_targets.errors import EXIT_MISMATCH, DeviceLostError, InputError, ReferenceLostError

if TYPE_CHECKING:
    from tapml.models.recorded_module import RecordedModule


@dataclass(frozen=True)
class SessionResult:
    """The outcome of a run.

    Attributes
    ----------
    status
        ``pass``, ``degraded``, ``fail``, ``incomplete`` (operators left on the source), ``not run``
        (every operator passes, but the device is too small for the model).
    exit_code
        Exit code of the command line.
    text
        One line for the user.
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
    """A migration in a folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings

    @classmethod
    def create(cls, folder: str | Path, settings: Settings) -> OffloadSession:
        """Create a session in an empty or new folder.

        Raises
        ------
        InputError
            If the folder has a session or other files.
        SetupError
            If it cannot be written.
        """
        run_folder = RunFolder(Path(folder), SESSION)
        if run_folder.exists:
            raise InputError(f"{folder} has a session; choose an empty folder, or open the session")
        return cls._begin(run_folder, settings)

    @classmethod
    def begin(
        cls, folder: str | Path, model: RecordedModule | str | Path, target: str, **settings: Any
    ) -> OffloadSession:
        """Create a session for a model in memory, or one with a folder or a name.

        Parameters
        ----------
        folder
            A new folder.
        model
            What :func:`tapml.from_torch` gave: if it is not saved yet, ``<folder>-model`` will
            have it. Or a model's name or path.
        target
            Platform to migrate the model to.
        settings
            More of :class:`~tapml.session.settings.Settings`.

        Raises
        ------
        InputError
            If the folder has a session, the model is none, or there is no such setting.
        SetupError
            If it cannot be written.

        Examples
        --------
        >>> import torch
        >>> import tapml as tml
        >>> model = tml.from_torch(torch.nn.Linear(4, 2), [torch.rand(3, 4)])
        >>> session = tml.OffloadSession.begin("moved", model, "opencl")
        >>> session.settings.target, session.settings.model.endswith("moved-model")
        ('opencl', True)
        """
        from tapml.models import resolve_model, zoo_names

        unknown = settings.keys() - set(Settings.__struct_fields__)
        if unknown:
            known = ", ".join(Settings.__struct_fields__)
            raise InputError(f"a session has no setting {min(unknown)!r}: expected of {known}")
        path = Path(folder)
        if isinstance(model, str | Path):
            text = str(model) if str(model) in zoo_names() else str(resolve_model(model))
        else:
            is_saved = model.source != Path()
            text = str((model if is_saved else model.save(f"{path}-model")).source)
        return cls.create(path, Settings(model=text, target=target, **settings))

    @classmethod
    def _begin(cls, run_folder: RunFolder, settings: Settings) -> OffloadSession:
        run_folder.begin(**{SETTINGS: settings.to_json()})
        return cls(run_folder.path, settings)

    @classmethod
    def open(cls, folder: str | Path) -> OffloadSession:
        """Open an existing session.

        Raises
        ------
        InputError
            If the folder has no session, or one of another version.
        """
        path = Path(folder)
        if not is_session(path):
            raise InputError(
                f"{path} is not a session: expected a folder made by `tapml offload --session`"
            )
        with open_journal(path / JOURNAL) as journal:
            text = journal.read_setting(SETTINGS)
        if text is None:
            raise InputError(
                f"{path} has a session without settings; start it with "
                f"`tapml offload --session {path}`"
            )
        try:
            return cls(path, Settings.from_json(text))
        except InputError as error:
            raise InputError(
                f"{error} (setting {SETTINGS!r} in {path / JOURNAL}); start again in another "
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
        """Open the session in a folder, or create one.

        An existing session without a rooted reference is started again if its settings differ, so
        that a mistake on the command line is easy to correct. Any other goes on with another device
        of its target, which is kept once that has opened.

        Parameters
        ----------
        folder
            The session's folder.
        settings
            Settings of a new session.
        given
            The settings that the user named; an existing session must agree with them, but for
            the device.
        restart
            Delete an existing session first.

        Raises
        ------
        InputError
            If the existing session has other settings (they are named), or `restart` would delete
            hand-written kernels.
        """
        path = Path(folder)
        run_folder = RunFolder(path, SESSION)
        if run_folder.exists and restart:
            _refuse_if_handwritten(path)
            run_folder.remove()
        if not run_folder.exists:
            return cls._begin(run_folder, settings)
        with run_folder.open_journal() as journal:
            begun = journal.read_setting(SETTINGS) is not None
            rooted = any(journal.events("rooted"))
        if not begun:
            return cls._begin(run_folder, settings)
        session = cls.open(path)
        other = [name for name, value in given.items() if getattr(session.settings, name) != value]
        if other and not rooted:
            return cls._begin(run_folder, settings)
        for name in other:
            if name != "device":
                have = getattr(session.settings, name)
                raise InputError(
                    f"the session in {path} was created with {name} = {_shown(have)}, not "
                    f"{_shown(given[name])}; choose another folder (--session), or start again "
                    "here with --restart"
                )
        return cls(path, replace(session.settings, device=given["device"])) if other else session

    def run(
        self,
        watcher: Watcher = ignore,
        options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    ) -> SessionResult:
        """Run Algorithm 1 of the paper from the end of the journal.

        Parameters
        ----------
        watcher
            Called with every event (:mod:`tapml.session.events`), on this thread.
        options
            Options of this run.

        Returns
        -------
        SessionResult
            The outcome; a mismatch is a result, not an error.

        Raises
        ------
        TapmlError
            If the session cannot continue: no device, a lost device, a full disk, a model that
            cannot be imported. Journaled results are kept.
        """
        run_folder = RunFolder(self.folder, SESSION)
        with run_folder.run(RunState(), watcher, options=options.to_json()) as run:
            journal = run.journal
            try:
                report, page = self._run(journal, run.watcher, options)
            except DeviceLostError as error:
                journal.append("lost", error=type(error).__name__, message=str(error))
                resume = f"continue with `tapml offload --session {self.folder}`"
                device = journal.read_setting(DEVICE) or ""
                when = f"once {device} answers, " if is_remote(device) else ""
                after = f"; journaled results are kept: {when}{resume}"
                raise with_context(error, after=after) from error
            except ReferenceLostError as error:
                journal.append("lost", error=type(error).__name__, message=str(error))
                after = "; journaled results are kept: once it answers, continue with "
                after += f"`tapml offload --session {self.folder}`"
                raise with_context(error, after=after) from error
            journal.append("ended", status=report["outcome"]["status"])
        status = str(report["outcome"]["status"])
        return SessionResult(
            status,
            0 if status == "pass" else EXIT_MISMATCH,
            str(report["outcome"]["text"]),
            report,
            page,
        )

    def _run(
        self, journal: Journal, watcher: Watcher, options: RunOptions
    ) -> tuple[dict[str, Any], Path]:
        # The device starts while the rest is imported and opened.
        profile = profile_of(journal, options)
        with SessionDevice(
            self.settings, journal, "" if profile == DEVICE_LIMITS else profile
        ) as device:
            from tapml.offload.context import open_context
            from tapml.offload.migration import migrate

            with open_context(
                self.folder, self.settings, journal, watcher, options, device
            ) as context:
                return migrate(context, options)


def _refuse_if_handwritten(folder: Path) -> None:
    from tapml.kernels.written import OWN_FOLDER

    kernels = folder / OWN_FOLDER
    if any(each.is_file() for each in kernels.rglob("*")):
        raise InputError(
            f"{kernels} has hand-written kernels, which --restart would delete; move the folder "
            "first, then use it with --kernels FOLDER"
        )


def _shown(setting: object) -> str:
    """A setting as text; empty and 0 mean the default."""
    return repr(setting) if setting else "the default"
