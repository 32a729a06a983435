"""Commands on their way to the queue of one open device.

A submission costs as much as a dozen launches, and a launch that is waited for would need two: its
own and the copy's that is read. So a few commands wait here for those that follow them. Whoever
waits for the device, writes past them, frees memory or says that nothing follows
(:meth:`WebGPUDriver.flush`) has them submitted first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tapml_targets.webgpu import commands as encoding
from tapml_targets.webgpu.commands import Command, Queries
from tapml_targets.webgpu.failures import failure

# More is work that the device had better begin with.
_MOST_WAITING: Final = 64


class Submissions:
    """What was encoded for one device and what waits to be.

    Parameters
    ----------
    device
        wgpu's.
    name
        The device's, for messages.
    caught
        What wgpu's calls raise.
    """

    def __init__(self, device: Any, name: str, caught: tuple[type[BaseException], ...]) -> None:
        self._device = device
        self._queue = device.queue
        self._name = name
        self._caught = caught
        self._waiting: list[Command] = []
        self._names: list[Callable[[], str]] = []

    def add(self, commands: Sequence[Command], what: Callable[[], str]) -> None:
        """Have commands submitted with those that follow; at once where they are many.

        Parameters
        ----------
        what
            Says what they do, for an error.
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
        """Submit what waits and `commands` behind it, at once; nothing where there is nothing.

        Raises
        ------
        DeviceLostError, RemoteError, SetupError
            What wgpu raised, with what was being done: where commands waited it names those.
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
        """Forget what waits: its device is given back."""
        self._waiting, self._names = [], []
