"""One model on one device for many clients: they take turns, in the order they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tapml.package.target_model import TargetModel
from tapml_targets.errors import DeviceLostError, TapmlError

_LOOK_SECONDS: Final = 0.25
_CLOSE_SECONDS: Final = 10.0


class BusyError(TapmlError):
    """The line is full."""


class LeftError(TapmlError):
    """The client has gone, or the server ends: nobody waits for an answer."""


class Turns:
    """Gives the model to one client at a time, and opens it again after its device was lost.

    Parameters
    ----------
    open_model
        Opens it; called at once, and again at the turn after a loss.
    waiting
        How many clients may wait while one has its turn.

    Attributes
    ----------
    name
        The model's.
    """

    def __init__(self, open_model: Callable[[], TargetModel], *, waiting: int) -> None:
        self._open = open_model
        self._waiting = waiting
        self._line: deque[object] = deque()
        self._moved = threading.Condition()
        self._ended = threading.Event()
        self._model: TargetModel | None = open_model()
        self.name = self._model.name

    @contextmanager
    def turn(self, gone: Callable[[], bool]) -> Iterator[TargetModel]:
        """Wait in line, and have the model in the block.

        Raises
        ------
        BusyError
            At once, if the line is full.
        LeftError
            If `gone` says so while it waits, or the server ends.
        TapmlError
            If the device was lost and cannot be opened again.
        """
        ticket = object()
        with self._moved:
            if len(self._line) > self._waiting:
                raise BusyError(
                    f"{len(self._line)} requests are ahead and no more may wait: try again later"
                )
            self._line.append(ticket)
        try:
            self._wait(ticket, gone)
            self._model = self._model or self._open()
            try:
                yield self._model
            except DeviceLostError:
                lost, self._model = self._model, None
                lost.close()
                raise
        finally:
            with self._moved:
                self._line.remove(ticket)
                self._moved.notify_all()

    @property
    def ended(self) -> bool:
        """Whether texts have to end: the server does."""
        return self._ended.is_set()

    def close(self) -> None:
        """End the text that is being written, send those away who wait, and free the device."""
        self._ended.set()
        with self._moved:
            self._moved.notify_all()
            self._moved.wait_for(lambda: not self._line, _CLOSE_SECONDS)
        if self._model is not None:
            self._model.close()

    def _wait(self, ticket: object, gone: Callable[[], bool]) -> None:
        while True:
            with self._moved:
                if self._ended.is_set():
                    raise LeftError("the server ends")
                if self._line[0] is ticket:
                    return
                self._moved.wait(_LOOK_SECONDS)
            if gone():
                raise LeftError("the client has gone")
