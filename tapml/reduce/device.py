"""A device that may be lost and is opened again: a wrong kernel can take its server down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from tapml.carving.replay_memory import ReplayMemory
from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash, pack


class ReopeningDevice:
    """One device over as many sessions as it takes. A context manager.

    Attributes
    ----------
    description
        The device.
    losses
        How often it was lost.
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
        """End the session, if one is open."""
        if self._memory is not None:
            self._memory.session.close()
        self._memory = None
        self._libraries.clear()

    def memory(self) -> ReplayMemory:
        """Memory on the open session; one is opened where there is none.

        Raises
        ------
        TapmlError
            If the device cannot be opened.
        """
        if self._memory is None:
            self._memory = ReplayMemory(self._open())
        return self._memory

    def upload(self, library: Library) -> RemoteLibrary:
        """The Library on the open session, sent once.

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
        """Note that the session is gone; the next use opens another."""
        self.losses += 1
        self.close()
