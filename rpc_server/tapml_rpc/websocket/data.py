"""The client's data connection over WebSocket: each message a frame of its own."""

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
        """See the protocol."""
        return self._half_split or self._stream.torn

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """See the protocol. The chunk may change as soon as this returns."""
        self._stream.send(frames.head(packed, len(chunk)), chunk, check)

    def receive(self, wait_milliseconds: int) -> tuple[memoryview, memoryview] | None:
        """See the protocol."""
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
        """See the protocol."""
        self._stream.abort()
