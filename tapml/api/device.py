"""Devices: names that start a server process, or connect to one, on first use."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tapml.devices.reach import check_spec, is_remote, open_another, open_device
from tapml_rpc.client import Session
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.platforms import check_platform


@dataclass(eq=False)
class Device:
    """A device of this machine, through its own server process, or of a remote one.

    The server process, or the connection, ends with the last object that uses the device: keep the
    device, or a tensor or Library on it, to keep the server.

    Attributes
    ----------
    name
        ``opencl`` for the best device of the platform, ``opencl:1`` for a specific one; the address
        of a server, or ``tracker:NAME`` for a device that a tracker lends.

    Raises
    ------
    InputError
        If the platform is unknown.
    NoSuchDeviceError
        On first use, if the device does not exist.
    SetupError
        On first use, if nothing answers at the address, or the server refuses the connection.
    """

    name: str
    _session: Session | None = field(default=None, repr=False)
    _end: weakref.finalize[[], Device] | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        check_spec(self.name)
        if not is_remote(self.name):
            check_platform(self.platform)

    @property
    def platform(self) -> str:
        """Name of the platform, such as ``opencl``; connects to a remote device to get it."""
        if is_remote(self.name):
            return self.description.platform
        return self.name.partition(":")[0]

    @property
    def session(self) -> Session:
        """The connection, opened on first use."""
        with self._lock:
            if self._session is None:
                self._session = open_device(self.name)
                self._end = weakref.finalize(self, self._session.close)
            return self._session

    def open_another(self, *, own_seconds: float | None = None) -> Session:
        """Open another session with the device, under the same lease.

        Parameters
        ----------
        own_seconds
            As for :func:`~tapml.devices.reach.open_device`.
        """
        with self._lock:
            if self._session is not None and is_remote(self.name):
                return open_another(self._session)
        return open_device(self.name, own_seconds=own_seconds)

    @contextmanager
    def commands(self) -> Iterator[Session]:
        """The connection for a block of commands; if one fails, the command stream is reset."""
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
        """The device's description from its driver."""
        return self.session.device

    def close(self) -> None:
        """End the server process; the next use starts a new one."""
        with self._lock:
            end, self._end, self._session = self._end, None, None
        if end is not None:
            end()


# Weak: a device that no object uses has no server process to keep.
_DEVICES: weakref.WeakValueDictionary[str, Device] = weakref.WeakValueDictionary()


def device(name: str) -> Device:
    """The device with a name; the same object, and so the same server, while one is in use."""
    return _DEVICES.setdefault(name, Device(name))


def open_platform(platform: str, index: int | None = None) -> Device:
    """Device `index` of a platform, by default the best-ranked one."""
    return device(platform if index is None else f"{platform}:{index}")
