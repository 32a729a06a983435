"""The device of a session: the requested one, the previous one, or the best available."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Self

from tapml.devices.reach import is_remote, open_device
from tapml.models.natural_dtype import natural_dtype
from tapml.models.resolve import resolve_model
from tapml.runs.events import Note, Watcher
from tapml_rpc.local import LocalWorker, open_local, start_local
from tapml_targets.driver_discovery import require_compiler
from tapml_targets.errors import InputError, NoSuchDeviceError
from tapml_targets.ranking import find_device, parse_device

if TYPE_CHECKING:
    from tapml.runs.journal import Journal
    from tapml.session.settings import Settings
    from tapml_rpc.client import Session
    from tapml_targets.driver import DeviceDescription

DEVICE: Final = "device"
SETTINGS: Final = "settings"
"""Settings of the journal: the device of the last run, and what the session was created with."""


class SessionDevice:
    """The device of a run; a context manager.

    A device of this machine is found and started as the block begins, because it takes as long to
    start as all other work of a resumed session before its first step; one that is not there is
    missed before anything slow is imported. The session's previous device needs no search.

    Parameters
    ----------
    settings
        May name the device.
    journal
        Has the device of the previous run.
    profile
        Whose limits the device is opened with, where it is of this machine and its platform can;
        empty for its own.
    """

    def __init__(self, settings: Settings, journal: Journal, profile: str = "") -> None:
        self._profile = profile
        self._settings = settings
        self._journal = journal
        self._used = _device(journal.read_setting(DEVICE), settings.target)
        self._starting: LocalWorker | None = None
        self._session: Session | None = None
        if self._used is not None and settings.device in ("", self._used) and not self._remote:
            self._starting = start_local(self._used, limits=profile)

    def __enter__(self) -> Self:
        # Without PyTorch the import that follows says what to install.
        if self._starting is None and not self._remote and find_spec("torch"):
            found = device_for_model(self._settings.device or self._settings.target, self._settings)
            self._starting = start_local(f"{found.platform}:{found.index}", limits=self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
        elif self._starting is not None:
            self._starting.close()

    def open(self, watcher: Watcher) -> Session:
        """Open the device, and record it as the session's device.

        The ranking of equal devices may change from run to run; a resumed session keeps its
        device as long as it exists.

        Raises
        ------
        NoSuchDeviceError
            If there is no such device.
        InputError
            If the model's dtype, for which the device is chosen, cannot be read.
        SetupError
            If the device's server does not start.
        """
        self._session = self._open(watcher)
        device, target = self._session.device, self._settings.target
        if device.platform != target:
            raise InputError(
                f"{self._remote} is a device of {device.platform}, but this session's target is "
                f"{target}; start a new session with --target {device.platform}"
            )
        spec = self._remote or f"{device.platform}:{device.index}"
        if self._settings.device and self._used not in (None, spec):
            watcher(Note(f"the session goes on with {spec}, {device.name}; before: {self._used}"))
        self._journal.write_setting(DEVICE, spec)
        # A run may have named another device than the one that the session was created with.
        self._journal.write_setting(SETTINGS, self._settings.to_json())
        return self._session

    @property
    def is_remote(self) -> bool:
        """Whether the device is on another machine or behind a tracker."""
        return bool(self._remote)

    @property
    def _remote(self) -> str:
        spec = self._settings.device or self._used or ""
        return spec if is_remote(spec) else ""

    def _open(self, watcher: Watcher) -> Session:
        if self._starting is not None:
            try:
                return self._starting.open()
            except NoSuchDeviceError:
                if self._settings.device:
                    # Search again: this error lists the available devices.
                    return open_local(self._settings.device, limits=self._profile)
                if self._used is None:
                    raise
                text = f"the session's device {self._used} is gone; using the best other one"
                watcher(Note(text))
        settings = self._settings
        if self._remote:
            return open_device(self._remote, say=lambda line: watcher(Note(line)))
        return open_for_model(settings.device or settings.target, settings, self._profile)


def open_for_model(device: str, settings: Settings, profile: str = "") -> Session:
    """Open a device of this machine; raises as :func:`device_for_model` does."""
    return open_local(device_for_model(device, settings), limits=profile)


def device_for_model(device: str, settings: Settings) -> DeviceDescription:
    """The device of this machine that `device` names, or a platform's best for the model's dtype.

    Raises
    ------
    NoSuchDeviceError
        If there is no such device.
    InputError
        If the model's dtype cannot be read.
    SetupError
        If kernels cannot be compiled for it here.
    """
    found = _found(device, settings)
    require_compiler(found.platform)
    return found


def _found(device: str, settings: Settings) -> DeviceDescription:
    dtype = settings.dtype
    if dtype == "auto":
        dtype = natural_dtype(resolve_model(settings.model))
    try:
        return find_device(device, dtype)
    except NoSuchDeviceError:
        if dtype == "float32":
            raise
        # No device supports this dtype: the model runs as float32, or refuses to.
        return find_device(device)


def _device(text: str | None, target: str) -> str | None:
    """The device of the previous run; None if `text` is not a device of the target."""
    if text and is_remote(text):
        return text
    try:
        platform, index = parse_device(text or "")
    except InputError:
        return None
    return text if platform == target and index is not None else None
