"""What comes from one client's connection: whole messages, in memory that is used again."""

from __future__ import annotations

from typing import Final

from websockets.asyncio.server import ServerConnection

from tapml_rpc.websocket.frames import MAX_MESSAGE_BYTES

_SHOWN_CHARACTERS: Final = 100


class Inbox:
    """Receives from one connection.

    Large messages come in fragments, each of which is copied while the processor's cache still
    holds it; joining them by the package would copy all of them again from memory.

    Parameters
    ----------
    connection
        An open connection whose messages are bounded by ``MAX_MESSAGE_BYTES``.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._memory = bytearray()

    async def next(self) -> memoryview | str:
        """The next message; its memory is used again by the next call. Text is given as it came.

        Raises
        ------
        websockets.exceptions.ConnectionClosed
            If the connection has ended.
        """
        text: str | None = None
        first = b""
        count = filled = 0
        async for piece in self._connection.recv_streaming():
            if isinstance(piece, str):
                text = piece[:_SHOWN_CHARACTERS] if text is None else text
            elif not count:
                first = piece
            else:
                filled = self._place(filled or self._place(0, first), piece)
            count += 1
        if text is not None:
            return text
        return memoryview(first) if count <= 1 else memoryview(self._memory)[:filled]

    def _place(self, position: int, piece: bytes) -> int:
        """Put a piece behind what is there; where it ends."""
        end = position + len(piece)
        if end > len(self._memory):
            # The package has bounded the message by now.
            larger = bytearray(min(max(end, 2 * len(self._memory)), MAX_MESSAGE_BYTES))
            larger[:position] = memoryview(self._memory)[:position]
            self._memory = larger
        memoryview(self._memory)[position:end] = piece
        return end
