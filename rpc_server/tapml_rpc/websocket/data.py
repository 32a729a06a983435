"""The client's data connection over WebSocket: one frame per message."""

from __future__ import annotations

from tapml_rpc.connection import Check
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.stream import Stream


class WebSocketData:
    """A :class:`tapml_rpc.connection.DataConnection` over a stream of WebSocket messages."""

    memory_is_reused = True

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._half_split = False

    @property
    def torn(self) -> bool:
        """Whether an exception may have left a frame half sent or half counted."""
        return self._half_split or self._stream.torn

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send a message. The chunk may change as soon as this returns."""
        self._stream.send(frames.head(packed, len(chunk)), chunk, check)

    def receive(self, wait_milliseconds: int) -> tuple[memoryview, memoryview] | None:
        """The next message's header and chunk; None if it is not complete in time."""
        message = self._stream.receive(wait_milliseconds)
        if message is None:
            return None
        self._half_split = True
        parts = frames.split(message)
        self._half_split = False
        return parts

    def close(self, packed: bytes) -> None:
        """Close: here the control connection says goodbye."""
        self._stream.close()

    def abort(self) -> None:
        """Close without a goodbye."""
        self._stream.abort()
