"""A client's plain data connection as its session's worker serves it, from its first message on.

One thread receives, runs and answers: a message goes from the socket to where it belongs, and a
result from device memory to the socket. A second one receives only while a command runs for long,
so that a client may send ahead, and its heartbeats are answered, whatever the device does.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final

from tapml_rpc import wire
from tapml_rpc.device.commands import PIECE_BYTES, PieceMemory
from tapml_rpc.device.interpreter import ClientGoneError
from tapml_rpc.failures import check_epoch, error_reply, show_fault
from tapml_rpc.flow import send_parts
from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.pipe import Pipe
from tapml_rpc.supervisor.relayed import Received, Window
from tapml_rpc.transport import EndedError
from tapml_rpc.welcome import Bounds
from tapml_rpc.zmtp import framing
from tapml_rpc.zmtp.incoming import Incoming
from tapml_targets.errors import ProtocolError, TapmlError

# Refusals that a client does not take.
_MOST_REPLY_BYTES: Final = 4 << 20
# Longer chunks get memory that was used before, in steps of that size.
_SHORT_BYTES: Final = 64 << 10
_STEP_BYTES: Final = 1 << 20
_KEPT_BUFFERS: Final = 4
_LONG_SECONDS: Final = 0.05
_MESSAGES_AT_ONCE: Final = 64
_GONE: Final = "its data connection is gone"


class SocketChannel(PieceMemory):
    """Takes and checks what a client sends, and sends it its answers.

    It owns `connection`, whose handshake is done and of which `received` has been read. `session`
    has the token and epoch of all its messages. `pipe` leads to the supervisor, which says nothing
    that it was not asked.
    """

    def __init__(
        self,
        connection: socket.socket,
        received: bytes,
        session: wire.Header,
        bounds: Bounds,
        board: Board,
        pipe: Pipe,
    ) -> None:
        super().__init__(PIECE_BYTES)
        connection.setblocking(False)
        self._socket = connection
        self._token, self._epoch = session["session"], session["epoch"]
        self._board = board
        self._pipe = pipe
        self._supervisor = pipe.fileno()
        self._window = Window(bounds)
        self._incoming = Incoming(connection, b"ROUTER", self._place, self._answer)
        self._incoming.resume(received)
        self._poll, self._poll_to_send = select.poll(), select.poll()
        for poll, events in ((self._poll, select.POLLIN), (self._poll_to_send, select.POLLOUT)):
            poll.register(connection, select.POLLIN | events)
            poll.register(pipe, select.POLLIN)
        self._messages: deque[Received] = deque()
        self._replies: deque[bytes] = deque()
        self._reply_bytes = 0
        self._problem: Exception | None = None
        self._said_goodbye = False
        # Held by the thread that receives or sends.
        self._lock = threading.RLock()
        self._pong = b""
        # Of the message whose chunk is arriving: its header, its memory, what is wrong with it.
        self._header: wire.Header | None = None
        self._buffer: bytearray | None = None
        self._error: Exception | None = None
        # Memory of the chunks of unanswered batches, and of earlier ones.
        self._buffers: dict[int, bytearray] = {}
        self._free: list[bytearray] = []
        threading.Thread(target=self._receive_ahead, name="tapml-receive", daemon=True).start()

    def next(self) -> Received | None:
        """The next message, waited for; None at the end, once the supervisor knows why."""
        while True:
            with self._lock:
                if not self._messages:
                    self._receive()
                while self._replies:
                    self._reply_bytes -= len(self._replies[0])
                    self.send(self._replies.popleft())
                if self._said_goodbye:
                    return None
                if self._messages:
                    return self._messages.popleft()
                if self._problem is not None:
                    self.lose(self._problem)
                    return None
                if self._incoming.pending:
                    continue
            if any(descriptor == self._supervisor for descriptor, _ in self._poll.poll()):
                return None

    def lose(self, problem: Exception) -> None:
        """Report the end of the connection to the supervisor, and its peer's fault to its peer."""
        problem, why = self._problem or problem, _GONE
        if isinstance(problem, ProtocolError):
            why = f"what came over its data connection is against the protocol: {problem}"
            if not self._board.sending:
                with suppress(ClientGoneError):
                    self.send(error_reply(problem, None))
        self._pipe.send(wire.pack({"type": "lost", "why": why}))

    def send(self, packed: bytes, parts: list[memoryview | bytes] | None = None) -> None:
        """Send a message, waiting while the client takes nothing, and receiving meanwhile.

        Raises ClientGoneError if it has gone, and ConnectionError if the session has ended.
        """
        with self._lock:
            self._board.sending = True
            self._send_all(framing.message_parts(packed, parts or ()))
            self._board.sending = False
            if self._pong:
                pong, self._pong = self._pong, b""
                self._answer(pong)

    def answered(self, sequence: int) -> None:
        """A batch is about to be answered: the memory of its chunk is free."""
        with self._lock:
            self._window.answered(sequence)
            buffer = self._buffers.pop(sequence, None)
            if buffer is not None and len(self._free) < _KEPT_BUFFERS:
                self._free.append(buffer)

    def answer(self, nbytes: int) -> memoryview:
        """Memory for the one read that an answer carries."""
        return self._memory[:nbytes]

    def direct(self) -> bool:
        """Bytes leave device memory before anything else runs."""
        return True

    def _receive_ahead(self) -> None:
        """Receive while a command runs for long."""
        while self._problem is None and not self._said_goodbye:
            time.sleep(_LONG_SECONDS)
            running = self._board.running()
            if running is None or time.monotonic() - running[2] < _LONG_SECONDS:
                continue
            if self._lock.acquire(blocking=False):
                try:
                    for _ in range(_MESSAGES_AT_ONCE):
                        if not self._receive():
                            break
                finally:
                    self._lock.release()

    def _receive(self) -> bool:
        """Take a message, if one has come."""
        if self._problem is not None or self._said_goodbye:
            return False
        try:
            message = self._incoming.next()
            if message is not None:
                self._take(*message)
        except (EndedError, ProtocolError) as error:
            self._problem = error
            return False
        return message is not None

    def _place(self, packed: bytes, nbytes: int) -> memoryview | None:
        try:
            header = self._header = wire.unpack(packed)
            self._check(header)
            if header["type"] == "batch":
                self._window.check(header, nbytes)
        except TapmlError as error:
            # Reported once the complete message has come, as for any other.
            self._error = error.with_traceback(None)
            return None
        if nbytes <= _SHORT_BYTES or header["type"] != "batch":
            return memoryview(bytearray(nbytes))
        found = next((each for each in self._free if len(each) >= nbytes), None)
        if found is None:
            found = bytearray(-(-nbytes // _STEP_BYTES) * _STEP_BYTES)
        else:
            self._free.remove(found)
        self._buffer = found
        return memoryview(found)[:nbytes]

    def _take(self, packed: bytes, chunk: memoryview, frames: int) -> None:
        header, self._header = self._header, None
        buffer, self._buffer = self._buffer, None
        error, self._error = self._error, None
        sequence = None
        try:
            if error is not None:
                raise error
            if frames > 2:
                raise ProtocolError("a message is a header and at most a chunk")
            if header is None:
                header = wire.unpack(packed)
                self._check(header)
            if header["type"] == "batch":
                sequence = self._window.add(header, len(chunk))
                self._board.last.add(sequence, packed)
                if buffer is not None:
                    self._buffers[sequence] = buffer
        except Exception as refused:
            self._refuse(refused, header)
            return
        self._board.take(sequence)
        if header["type"] == "goodbye":
            self._said_goodbye = True
            self._pipe.send(packed)
        else:
            self._messages.append(Received(header, packed, chunk))

    def _check(self, header: wire.Header) -> None:
        """Check whose message it is, and its type."""
        check_epoch(header, self._epoch)
        if header.get("session") != self._token:
            raise ProtocolError("this connection is another session's")
        kind = header.get("type")
        if kind == "credit":
            wire.integer(header.get("bytes"), "credit")
        elif kind not in ("batch", "blob", "goodbye"):
            raise ProtocolError(f"unknown message type {str(kind)[:60]!r}")

    def _refuse(self, error: Exception, header: wire.Header | None) -> None:
        show_fault(error)
        reply = error_reply(error, header)
        self._reply_bytes += len(reply)
        if self._reply_bytes > _MOST_REPLY_BYTES:
            raise EndedError("it takes none of its answers")
        self._replies.append(reply)

    def _answer(self, command: bytes) -> None:
        """Answer a heartbeat, not within a message."""
        if self._board.sending:
            self._pong = command
            return
        with suppress(BlockingIOError):
            if self._socket.send(command) < len(command):
                raise EndedError("it takes none of its answers")

    def _send_all(self, parts: list[memoryview]) -> None:
        while parts:
            try:
                sent = send_parts(self._socket, parts)
            except OSError as error:
                raise ClientGoneError(str(error)) from None
            if not sent:
                self._wait()

    def _wait(self) -> None:
        """Wait until the client takes something: this is not the device's time."""
        self._board.rest()
        self._board.paused = True
        for descriptor, events in self._poll_to_send.poll():
            if descriptor == self._supervisor:
                raise ConnectionResetError("the supervisor has ended this session")
            if events & ~select.POLLOUT:
                self._receive()
                if self._problem is not None:
                    raise ClientGoneError(str(self._problem))
        self._board.paused = False
