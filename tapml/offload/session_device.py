"""The device of a session: the one it was told, the one it had, or the best there is."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from tapml.models.checkpoint import inspect_checkpoint
from tapml.models.resolve import resolve_model
from tapml.offload.events import Note, Watcher
from tapml_rpc.local import StartingDevice, open_local, start_local
from tapml_rpc.reach import is_remote, open_device
from tapml_targets.errors import InputError, NoSuchDeviceError
from tapml_targets.ranking import parse_device

if TYPE_CHECKING:
    from tapml.offload.journal import Journal
    from tapml.offload.settings import Settings
    from tapml_rpc.client import Session

DEVICE: Final = "device"


class SessionDevice:
    """The device a run of a session works with; a context manager.

    A device that the session has had is started at once: its server takes as long to come up as
    everything else that a resumed session does before its first step.

    Parameters
    ----------
    settings
        Say which device, where somebody named one.
    journal
        Knows the device of the run before.
    """

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        self._used = _device(journal.read_setting(DEVICE), settings.target)
        self._starting: StartingDevice | None = None
        self._session: Session | None = None
        if self._used is not None and settings.device in ("", self._used) and not self._remote:
            self._starting = start_local(self._used)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            self._session.close()
        elif self._starting is not None:
            self._starting.close()

    def open(self, watcher: Watcher) -> Session:
        """A session with the device; from now on it is the session's own.

        Two devices that rank alike may change places from run to run: a resumed session stays
        where it was, as long as there is such a device.

        Raises
        ------
        NoSuchDeviceError
            If there is no such device.
        InputError
            If the model, whose dtype the best device is chosen for, cannot be looked at.
        SetupError
            If its server does not come up.
        """
        self._session = self._open(watcher)
        device, target = self._session.device, self._settings.target
        if device.platform != target:
            raise InputError(
                f"{self._remote} is a device of {device.platform}, and this session moves to "
                f"{target}: say --target {device.platform}, in a session of its own"
            )
        spec = self._remote or f"{device.platform}:{device.index}"
        self._journal.write_setting(DEVICE, spec)
        return self._session

    @property
    def elsewhere(self) -> bool:
        """Whether the device is reached by an address or a tracker."""
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
                    # It is looked for again, for the list of those that there are.
                    return open_local(self._settings.device)
                watcher(
                    Note(
                        f"the session's device {self._used} is gone: the best of the others is used"
                    )
                )
        settings = self._settings
        if self._remote:
            return open_device(self._remote, say=lambda line: watcher(Note(line)))
        device = settings.device or settings.target
        dtype = settings.dtype
        if dtype == "auto":
            dtype = inspect_checkpoint(resolve_model(settings.model)).natural_dtype
        try:
            return open_local(device, dtype=dtype)
        except NoSuchDeviceError:
            if dtype == "float32":
                raise
            # No device has it: the model runs as float32, or says that it was told not to.
            return open_local(device)


def _device(text: str | None, target: str) -> str | None:
    """The device of the run before; None where what is written there is no device of the target."""
    if text and is_remote(text):
        return text
    try:
        platform, index = parse_device(text or "")
    except InputError:
        return None
    return text if platform == target and index is not None else None
