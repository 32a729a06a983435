"""Pending commands for the queue of one open device.

A submission costs as much as a dozen launches, and a launch whose result is read would need two. So
a few commands wait here for those that follow. A wait, a write, freed memory and
:meth:`WebGPUDriver.flush` submit them first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tapml_targets.webgpu import commands as encoding
from tapml_targets.webgpu.commands import Command, Queries
from tapml_targets.webgpu.failures import failure

# With more the device should start working.
_MOST_WAITING: Final = 64


class Submissions:
    """The submitted and pending commands of one device.

    Parameters
    ----------
    device
        wgpu's.
    name
        The device's, for messages.
    caught
        The exceptions of wgpu's calls.
    """

    def __init__(self, device: Any, name: str, caught: tuple[type[BaseException], ...]) -> None:
        self._device = device
        self._queue = device.queue
        self._name = name
        self._caught = caught
        self._waiting: list[Command] = []
        self._names: list[Callable[[], str]] = []

    def add(self, commands: Sequence[Command], what: Callable[[], str]) -> None:
        """Add commands to the next submission; submit at once if there are many.

        Parameters
        ----------
        what
            Describes them in an error.
        """
        if not commands:
            return
        self._waiting += commands
        self._names.append(what)
        if len(self._waiting) > _MOST_WAITING:
            self.submit()

    def submit(
        self,
        commands: Sequence[Command] = (),
        what: Callable[[], str] | None = None,
        queries: Queries | None = None,
    ) -> None:
        """Submit pending commands and then `commands`, if there are any.

        Raises
        ------
        DeviceLostError, RemoteError, SetupError
            wgpu's error, with the descriptions of the commands.
        """
        waiting, names = self._waiting, self._names
        if waiting:
            self._waiting, self._names = [], []
            commands = [*waiting, *commands]
        elif not commands:
            return
        if what is not None:
            names = [*names, what]
        try:
            self._queue.submit([encoding.encode(self._device, commands, queries)])
        except self._caught as error:
            told = list(dict.fromkeys(name() for name in names)) or ["a submission"]
            raise failure(self._name, ", ".join(told[:4]), error) from None

    def drop(self) -> None:
        """Discard pending commands, because the device is closed."""
        self._waiting, self._names = [], []
