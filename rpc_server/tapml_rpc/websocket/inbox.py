"""Receives one client's messages, large ones in pieces."""

from __future__ import annotations

from typing import Final

from websockets.asyncio.server import ServerConnection

from tapml_rpc.scattered import Chunk, Scattered

_SHOWN_CHARACTERS: Final = 100
# Smaller fragments are joined: a peer decides how many of them there are.
_SMALL_BYTES: Final = 4 << 10


class Inbox:
    """Receives from one connection, whose messages are bounded by ``MAX_MESSAGE_BYTES``.

    Large messages come in fragments, which are left in place: the payload is copied from there
    once, perhaps after other messages have come.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def next(self) -> Chunk | str:
        """The next message. Text is returned unchanged, at least its beginning.

        Raises ``websockets.exceptions.ConnectionClosed`` if the connection has ended.
        """
        text: str | None = None
        pieces: list[memoryview] = []
        small = bytearray()
        async for piece in self._connection.recv_streaming():
            if isinstance(piece, str):
                text = piece[:_SHOWN_CHARACTERS] if text is None else text
            elif len(piece) < _SMALL_BYTES:
                small += piece
            else:
                if small:
                    pieces.append(memoryview(small))
                    small = bytearray()
                pieces.append(memoryview(piece))
        if text is not None:
            return text
        if small or not pieces:
            pieces.append(memoryview(small))
        return pieces[0] if len(pieces) == 1 else Scattered(pieces)
