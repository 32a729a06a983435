"""A session's payloads on their way through the supervisor: where a worker cannot serve a client.

Those are clients with keys, whose socket is libzmq's, and clients of WebSockets. Payloads lie in
two rings of shared memory, once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.scattered import Chunk, in_one_piece
from tapml_rpc.supervisor.channel import Channel
from tapml_rpc.supervisor.pipe import INLINE_BYTES, NOWHERE, Frame
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_rpc.window import Window
from tapml_targets.errors import ProtocolError

_NO_CHUNK: Final = memoryview(b"")


class RelayedData:
    """Brings a worker its session's messages, and the client what the worker sends.

    `bounds` limit what the client may send ahead. `write` runs what writes to the worker's pipe.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        channel: Channel,
        bounds: Bounds,
        write: Callable[[Callable[[], None]], None],
    ) -> None:
        self._worker = worker
        self._channel = channel
        self._write = write
        self._window = Window(bounds)

    def add(self, header: wire.Header, packed: bytes, chunk: Chunk) -> None:
        """Take a batch; raises ProtocolError if it is malformed or out of bounds."""
        self._window.add(header, len(chunk))
        self.forward(packed, chunk)

    def forward(self, packed: bytes, chunk: Chunk = _NO_CHUNK) -> None:
        """Hand a message on; raises ProtocolError if there is no room for its chunk."""
        pipe, nbytes = self._worker.pipe, len(chunk)
        if nbytes <= INLINE_BYTES:
            inline = in_one_piece(chunk)
            self._write(lambda: pipe.send(packed, inline))
            return
        start = self._worker.up.place(chunk)
        if start is None:
            raise ProtocolError("more bytes wait for an answer than this server takes")
        place = start, nbytes
        self._write(lambda: pipe.send(packed, place=place))

    def pass_on(self, header: wire.Header, frame: Frame) -> bool:
        """Pass on a message of the worker; False if nobody takes it.

        Raises ProtocolError if it is not an answer.
        """
        if header.get("type") == "done":
            self._window.answered(wire.integer(header.get("sequence"), "sequence"))
        down, sent = self._worker.down, None
        parts: list[bytes | memoryview] = [frame.inline] if frame.inline else []
        if frame.start != NOWHERE:
            parts = [down.view(frame.start, frame.nbytes)]
            sent = partial(down.release, frame.start, frame.nbytes)
        return self._channel.send_data(frame.packed, parts, sent)

    def has_none(self) -> bool:
        """Whether no batch waits for an answer."""
        return not self._window
