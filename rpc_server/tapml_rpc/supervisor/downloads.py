"""A session's answers on their way to its client: those passed on here, and the worker's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tapml_rpc import wire
from tapml_rpc.supervisor.channel import Channel
from tapml_rpc.supervisor.pipe import NOWHERE, Frame
from tapml_rpc.supervisor.shared_line import SharedLine
from tapml_rpc.supervisor.worker_process import WorkerProcess


class Downloads:
    """Brings a client what its session's worker gives.

    Parameters
    ----------
    worker
        Whose answers they are.
    channel
        To the client.
    line
        The client's data connection, once the worker sends on it as well.
    on_answered
        Told of the batches that are answered, by the last one's sequence number.

    Attributes
    ----------
    answered
        The last batch that is.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        channel: Channel,
        line: SharedLine,
        on_answered: Callable[[int], None],
    ) -> None:
        self._worker = worker
        self._channel = channel
        self._line = line
        self._on_answered = on_answered
        self.answered = 0

    def pass_on(self, header: wire.Header, frame: Frame) -> bool:
        """Pass a message of the worker on; False where nobody takes it.

        Raises
        ------
        ProtocolError
            If it is no answer.
        """
        if header.get("type") == "done":
            self._note(wire.integer(header.get("sequence"), "sequence"))
        if frame.start == NOWHERE:
            parts: list[bytes | memoryview] = [frame.inline] if frame.inline else []
        else:
            parts = [self._worker.down.view(frame.start, frame.nbytes)]
        return self._channel.send_data(frame.packed, parts, partial(self._passed_on, frame))

    def settle(self) -> None:
        """Look what the worker has sent by itself, and send what waited for it to end."""
        if (answered := self._line.newly_answered()) is not None:
            self._note(answered)
        self._line.settle()

    def _note(self, sequence: int) -> None:
        self.answered = max(self.answered, sequence)
        self._on_answered(sequence)

    def _passed_on(self, frame: Frame) -> None:
        if frame.start != NOWHERE:
            self._worker.down.release(frame.start, frame.nbytes)
        self._line.count_passed()
