"""A device that is reopened after a loss, because a wrong kernel can crash its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from tapml.replaying.memory import ReplayMemory
from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash, pack


class ReopeningDevice:
    """One device over several sessions. A context manager.

    Attributes
    ----------
    description
        The device.
    losses
        Number of losses.
    """

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open = open_session
        self._memory: ReplayMemory | None = None
        self._libraries: dict[str, RemoteLibrary] = {}
        self.losses = 0
        self.description: DeviceDescription = self.memory().session.device

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session, if one is open."""
        if self._memory is not None:
            self._memory.session.close()
        self._memory = None
        self._libraries.clear()

    def memory(self) -> ReplayMemory:
        """Memory of the session, which is opened if necessary.

        Raises
        ------
        TapmlError
            If the device cannot be opened.
        """
        if self._memory is None:
            self._memory = ReplayMemory(self._open())
        return self._memory

    def upload(self, library: Library) -> RemoteLibrary:
        """Load a Library in the session, sent once.

        Raises
        ------
        CompileError
            If it does not build on the device.
        """
        name = library_hash(pack(library))
        if name not in self._libraries:
            self._libraries[name] = self.memory().session.upload(library)
        return self._libraries[name]

    def lost(self) -> None:
        """Drop the session; the next use opens another."""
        self.losses += 1
        self.close()
