"""A server's end of one WebSocket: messages to and from a peer, on the thread of its forwarder."""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from websockets.frames import Close

from tapml_rpc.flow import Forwarder, receive_into, send_parts
from tapml_rpc.websocket import framing
from tapml_rpc.websocket.framing import FrameReader, Mask, Piece, TooLongError
from tapml_targets.errors import ProtocolError

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
UNSUPPORTED: Final = 1003
REFUSED: Final = 1008
_MALFORMED: Final = 1002
_TOO_LONG: Final = 1009
# Smaller messages are sent in one piece.
_AT_ONCE_BYTES: Final = 32 << 10
# Smaller fragments are joined: a peer decides how many of them there are.
_SMALL_BYTES: Final = 4 << 10
_MOST_REASON_BYTES: Final = 120
# What a message that waits costs besides its bytes: a peer decides how many pongs there are.
_ENTRY_BYTES: Final = 512
_CLOSE_SECONDS: Final = 1.5

Parts = Sequence[memoryview | bytes]
Heard = Callable[[memoryview | None], None]
"""Takes a message: a binary one, None for text. Its memory stays as it is."""


@dataclass
class _Entry:
    parts: list[memoryview]
    nbytes: int
    sent: Callable[[], None] | None


class ServerConnection:
    """Messages to and from one peer.

    It owns `connection`, which is upgraded and non-blocking, with TLS or without. `heard` takes
    each message, of at most `most_bytes`; `ended` is called once, with the reason, when it is over.
    More than `most_unsent` bytes that wait for the peer end it; every message and every pong counts
    as 512 more. `last_heard` is on the monotonic clock. `gone`: its socket is closed.
    """

    def __init__(
        self,
        connection: socket.socket,
        forwarder: Forwarder,
        heard: Heard,
        ended: Callable[[str], None],
        *,
        most_bytes: int,
        most_unsent: int,
    ) -> None:
        self.last_heard = self._moved = time.monotonic()
        self.gone = False
        self._socket = connection
        self._forwarder = forwarder
        self._heard = heard
        self._ended: Callable[[str], None] | None = ended
        self._most_unsent = most_unsent
        self._reader = FrameReader(masked=True, most_bytes=most_bytes)
        self._mask = Mask(bytes(framing.KEY_BYTES))
        # The message and the control frame that are arriving.
        self._pieces: list[memoryview] = []
        self._small = bytearray()
        self._text = False
        self._control = bytearray()
        self._queue: deque[_Entry] = deque()
        self._nbytes = 0
        # When a connection that has been closed is given up; what still comes is discarded.
        self._deadline = 0.0
        self._events = selectors.EVENT_READ
        forwarder.watch(connection, self._events, self._ready)

    def put(self, head: bytes, parts: Parts = (), sent: Callable[[], None] | None = None) -> bool:
        """Send one message; `sent` is called once `parts` may change, in any case."""
        nbytes = len(head) + sum(map(len, parts))
        if self._deadline or self.gone or self._nbytes + nbytes > self._most_unsent:
            if not self._deadline:
                self._end("it takes none of its messages")
            _call(sent)
            return False
        framed = framing.frame_head(framing.BINARY, nbytes) + head
        if nbytes <= _AT_ONCE_BYTES:
            self._post([memoryview(b"".join((framed, *parts)))], nbytes, sent)
        else:
            views = [memoryview(part) for part in (framed, *parts) if len(part)]
            self._post(views, nbytes, sent)
        return not self.gone

    def ping(self) -> None:
        """Ask for a sign of life, which every WebSocket gives by itself."""
        if not self._deadline and not self.gone:
            self._post([memoryview(framing.frame_head(framing.PING, 0))], 0, None)

    def close(self, code: int, why: str) -> None:
        """Send what waits and a goodbye, as far as the peer takes them soon; it is over now."""
        if self._deadline or self.gone:
            return
        self._deadline = time.monotonic() + _CLOSE_SECONDS
        reason = why.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")
        body = Close(code, reason).serialize()
        self._report(why)
        frame = framing.frame_head(framing.CLOSE, len(body)) + body
        self._post([memoryview(frame)], 0, None)

    def stalled_seconds(self, now: float) -> float:
        """How long the peer has taken nothing of what waits; 0 if nothing waits."""
        return now - self._moved if self._nbytes else 0.0

    def look(self, now: float) -> None:
        """Give up one that was closed long ago; call it a few times a second."""
        if self._deadline and now > self._deadline:
            self._end("")

    def _ready(self, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read()
            if events & selectors.EVENT_WRITE and not self.gone:
                self._flush()
        except OSError as error:
            self._end(f"its connection dropped: {error}")

    def _read(self) -> None:
        count = receive_into(self._socket, self._forwarder.memory)
        if count is None:
            return
        if not count:
            self._end("its connection dropped")
            return
        self.last_heard = time.monotonic()
        try:
            for piece in self._reader.feed(self._forwarder.memory[:count]):
                if self._deadline or self.gone:
                    # The rest is discarded.
                    return
                self._take(piece)
        except TooLongError as error:
            self.close(_TOO_LONG, str(error))
        except ProtocolError as error:
            self.close(_MALFORMED, str(error))

    def _take(self, piece: Piece) -> None:
        opcode = piece.first & 0x0F
        if piece.head:
            self._mask = Mask(piece.head[-framing.KEY_BYTES :])
        data = self._mask.turn(piece.payload) if piece.payload else b""
        if opcode >= framing.CLOSE:
            self._control += data
            if not piece.left:
                control, self._control = bytes(self._control), bytearray()
                self._answer(opcode, control)
            return
        if piece.head and opcode != framing.CONTINUATION:
            self._text = opcode == framing.TEXT
        if self._text:
            # Nobody reads it.
            pass
        elif len(data) < _SMALL_BYTES:
            self._small += data
        else:
            self._keep_small()
            self._pieces.append(memoryview(data))
        if not piece.left and piece.first & framing.FIN:
            self._deliver()

    def _keep_small(self) -> None:
        if self._small:
            self._pieces.append(memoryview(self._small))
            self._small = bytearray()

    def _deliver(self) -> None:
        self._keep_small()
        pieces, self._pieces = self._pieces or [memoryview(b"")], []
        if self._text:
            self._heard(None)
        else:
            self._heard(pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces)))

    def _answer(self, opcode: int, payload: bytes) -> None:
        if opcode == framing.PING:
            frame = framing.frame_head(framing.PONG, len(payload)) + payload
            self._post([memoryview(frame)], len(payload), None)
        elif opcode == framing.CLOSE:
            self.close(NORMAL, "it closed its connection")

    def _post(self, parts: list[memoryview], nbytes: int, sent: Callable[[], None] | None) -> None:
        if not self._nbytes:
            self._moved = time.monotonic()
        nbytes += _ENTRY_BYTES
        self._queue.append(_Entry(parts, nbytes, sent))
        self._nbytes += nbytes
        if len(self._queue) == 1:
            try:
                self._flush()
            except OSError as error:
                self._end(f"its connection dropped: {error}")
        elif self._nbytes > self._most_unsent:
            self._end("it takes none of its messages")

    def _flush(self) -> None:
        queue = self._queue
        while queue and send_parts(self._socket, queue[0].parts):
            self._moved = time.monotonic()
            if not queue[0].parts:
                self._nbytes -= queue[0].nbytes
                _call(queue.popleft().sent)
        if self.gone:
            return
        if self._deadline and not queue:
            # What was sent last is read before the end of the connection.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if queue else 0)
        if events != self._events:
            self._events = events
            self._forwarder.rewatch(self._socket, events, self._ready)

    def _end(self, why: str) -> None:
        if self.gone:
            return
        self.gone = True
        self._forwarder.forget(self._socket)
        self._socket.close()
        self._nbytes = 0
        while self._queue:
            _call(self._queue.popleft().sent)
        self._report(why)

    def _report(self, why: str) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(why)


def _call(sent: Callable[[], None] | None) -> None:
    if sent is not None:
        sent()
