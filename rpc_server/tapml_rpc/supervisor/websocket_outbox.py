"""One client's two connections, as its session and the front see them."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from websockets.asyncio.server import ServerConnection, broadcast
from websockets.exceptions import ConnectionClosed
from websockets.protocol import OPEN

from tapml_rpc.scattered import Chunk, Scattered
from tapml_rpc.websocket import frames

if TYPE_CHECKING:
    from tapml_rpc.supervisor.relay import Relay

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


WRITE_LIMIT: Final = 0
# asyncio's TLS counts a limit of 0 as reached while nothing waits, at every second look, and a
# drain then waits for ever. What it has taken is encrypted, in its own memory.
TLS_WRITE_LIMIT: Final = (1, 0)
_AT_ONCE_BYTES: Final = 32 << 10
# Sent along with a frame's head, so that a waiting receiver wakes up to more than that.
_FIRST_BYTES: Final = 16 << 10
_BINARY: Final = 0x82
_FLUSH_SECONDS: Final = 1.0
_MOST_REASON_BYTES: Final = 120

Parts = Sequence[memoryview | bytes]


@dataclass(frozen=True)
class _Entry:
    head: bytes
    parts: Parts
    nbytes: int
    sent: Callable[[], None] | None


class Outbox:
    """Sends to one connection. All methods run on the loop's thread.

    The connection counts as full while anything is unwritten (``WRITE_LIMIT``): until then it may
    still read a message's memory. More than `most_bytes` waiting ends the connection.
    """

    def __init__(self, connection: ServerConnection, most_bytes: int) -> None:
        self._connection = connection
        self._most_bytes = most_bytes
        self._queue: deque[_Entry] = deque()
        self._nbytes = 0
        self._moved = time.monotonic()
        self._closed = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(self._write())

    def put(self, head: bytes, parts: Parts = (), sent: Callable[[], None] | None = None) -> bool:
        """Send `head` and `parts` as one message; False if the connection has ended.

        `sent` is called once `parts` may be overwritten, in the order of the calls, and also if
        nobody takes them.
        """
        nbytes = len(head) + sum(map(len, parts))
        if self._closed or self._connection.state is not OPEN:
            _call(sent)
            return False
        waiting = self._nbytes + self._connection.transport.get_write_buffer_size()
        if waiting + nbytes > self._most_bytes:
            self.abort()
            _call(sent)
            return False
        if not self._nbytes and nbytes <= _AT_ONCE_BYTES:
            broadcast((self._connection,), b"".join((head, *parts)))
            _call(sent)
            return True
        if not self._nbytes:
            self._moved = time.monotonic()
            self._idle.clear()
        self._queue.append(_Entry(head, parts, nbytes, sent))
        self._nbytes += nbytes
        self._wake.set()
        return True

    def stalled_seconds(self, now: float) -> float:
        """How long the client has taken nothing of what waits; 0 if nothing waits."""
        return now - self._moved if self._nbytes else 0.0

    def abort(self) -> None:
        """End the connection at once."""
        self._closed = True
        self._connection.transport.abort()
        self._task.cancel()
        self._forget()

    async def close(self, code: int, reason: str) -> None:
        """Send what waits, if the client takes it soon, and close with a reason."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._idle.wait()
        if self._nbytes:
            self.abort()
            return
        self._closed = True
        self._task.cancel()
        shown = reason.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")
        await self._connection.close(code, shown)

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                # No name for an entry here: it would keep the last one's memory while this waits.
                while self._queue:
                    await self._send(self._queue[0])
                    self._nbytes -= self._queue[0].nbytes
                    self._moved = time.monotonic()
                    _call(self._queue.popleft().sent)
                self._idle.set()
        except ConnectionClosed:
            self._closed = True
            self._forget()
        except asyncio.CancelledError:
            # Ended by this object only. A task that ends by it keeps its frames, and what they
            # hold.
            return

    async def _send(self, entry: _Entry) -> None:
        """Write a frame in one turn of the loop, so that none of the package's comes between."""
        if self._connection.state is not OPEN:
            await self._connection.send(b"")  # says how it has ended
        write = self._connection.transport.write
        first = memoryview(entry.parts[0]) if entry.parts else memoryview(b"")
        write(b"".join((_frame_head(entry.nbytes), entry.head, first[:_FIRST_BYTES])))
        for part in (first[_FIRST_BYTES:], *entry.parts[1:]):
            write(part)
        await self._connection.drain()

    def _forget(self) -> None:
        while self._queue:
            _call(self._queue.popleft().sent)
        self._nbytes = 0
        self._idle.set()


def _frame_head(nbytes: int) -> bytes:
    """The head of an unmasked binary frame that is a complete message."""
    if nbytes < 126:
        return struct.pack("!BB", _BINARY, nbytes)
    if nbytes < 1 << 16:
        return struct.pack("!BBH", _BINARY, 126, nbytes)
    return struct.pack("!BBQ", _BINARY, 127, nbytes)


def _call(sent: Callable[[], None] | None) -> None:
    if sent is not None:
        sent()


class ClientChannel:
    """The :class:`tapml_rpc.supervisor.relayed.Channel` of a client.

    `data` is None until the client has opened it. `fileno` is the relay's, as the loop watches it.
    `closing` is set once dropped: the task that closes its connections.
    """

    relay: Relay

    def __init__(self, control: Outbox) -> None:
        self.control = control
        self.data: Outbox | None = None
        self.fileno = -1
        self.closing: list[asyncio.Task[None]] = []

    def send_control(self, packed: bytes) -> bool:
        """Send a packed header on the control connection."""
        return self.control.put(frames.head(packed, 0))

    def send_data(
        self, packed: bytes, parts: Parts, sent: Callable[[], None] | None = None
    ) -> bool:
        """Send a packed header and its chunk on the data connection."""
        if self.data is None:
            if sent is not None:
                sent()
            return False
        return self.data.put(frames.head(packed, sum(map(len, parts))), parts, sent)

    def stalled_seconds(self, now: float) -> float:
        """How long the client has taken none of the bytes that wait for it."""
        boxes = (self.control, self.data)
        return max(box.stalled_seconds(now) for box in boxes if box is not None)
