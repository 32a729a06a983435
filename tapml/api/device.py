"""Devices: a name that opens a server process when it is first used and keeps it."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tapml_rpc.client import Session
from tapml_rpc.reach import check_spec, is_remote, open_another, open_device
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.platforms import check_platform


@dataclass(eq=False)
class Device:
    """A device: of this machine, through a server process of its own, or of another one.

    Attributes
    ----------
    name
        ``opencl`` for the best device of the platform, ``opencl:1`` for a certain one; the address
        of a server, ``tracker:NAME`` for one that a tracker lends.

    Raises
    ------
    InputError
        If the platform is unknown.
    NoSuchDeviceError
        On first use, if the device does not exist.
    SetupError
        On first use, if nothing answers at an address, or the server does not let us in.
    """

    name: str
    _session: Session | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        check_spec(self.name)
        if not is_remote(self.name):
            check_platform(self.platform)

    @property
    def platform(self) -> str:
        """Folder name of the platform, e.g. ``opencl``; a device elsewhere is asked for it."""
        if is_remote(self.name):
            return self.description.platform
        return self.name.partition(":")[0]

    @property
    def session(self) -> Session:
        """The connection; opened on first use."""
        with self._lock:
            if self._session is None:
                self._session = open_device(self.name)
                atexit.register(self.close)
            return self._session

    def open_another(self, *, own_seconds: float | None = None) -> Session:
        """A session of the caller's own with the device; under the lease that this one has.

        Parameters
        ----------
        own_seconds
            As of :func:`~tapml_rpc.reach.open_device`.
        """
        with self._lock:
            if self._session is not None and is_remote(self.name):
                return open_another(self._session)
        return open_device(self.name, own_seconds=own_seconds)

    @contextmanager
    def commands(self) -> Iterator[Session]:
        """The connection, for a block of commands.

        Where one fails, the error leaves the block and the stream is cleared, so that the next
        block's commands run.
        """
        session = self.session
        try:
            yield session
        except DeviceLostError:
            raise
        except TapmlError:
            with suppress(TapmlError):
                session.reset()
            raise

    @property
    def description(self) -> DeviceDescription:
        """What the device's own driver says about it."""
        return self.session.device

    def close(self) -> None:
        """End the server process; the next use starts another."""
        with self._lock:
            session, self._session = self._session, None
        atexit.unregister(self.close)
        if session is not None:
            session.close()


_DEVICES: dict[str, Device] = {}


def device(name: str) -> Device:
    """The device called `name`; the same object, and so the same server, each time."""
    return _DEVICES.setdefault(name, Device(name))


def open_platform(platform: str, index: int | None = None) -> Device:
    """Device `index` of a platform; the best-ranked one where no index is given."""
    return device(platform if index is None else f"{platform}:{index}")
