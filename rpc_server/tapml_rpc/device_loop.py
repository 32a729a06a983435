"""The device thread: owns the data socket and the driver, and runs batches as they come.

One thread receives, runs and answers, because handing a message from thread to thread costs more
than a small kernel. Heartbeats and cancellation therefore have a socket and a thread of their own
(:mod:`tapml_rpc.control_loop`).
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.command_clock import RunningCommand
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.interpreter import ClientGoneError, Interpreter
from tapml_rpc.libraries import LibraryStore
from tapml_rpc.router import GONE, bind_router, check_chunk, split, take
from tapml_rpc.server_session import Message, ServerSession
from tapml_targets.driver import Driver
from tapml_targets.errors import (
    DeviceLostError,
    DeviceRestartedError,
    ProtocolError,
)

_POLL_MILLISECONDS: Final = 100
_LOOK_SECONDS: Final = 0.1
_PAST_SESSIONS: Final = 64
_ZERO_COPY_BYTES: Final = 64 << 10


class DeviceLoop:
    """Serves batches on the data socket until told to stop.

    Parameters
    ----------
    context
        The server's ZeroMQ context.
    sessions
        All sessions by token; the control thread adds them, this thread removes them.
    epoch
        Random bytes of this server's life.
    heartbeats
        Whether to look for clients whose host has vanished.

    Attributes
    ----------
    ended
        Sessions for this thread to free.
    clock
        What the device is doing, for the control thread.
    dropped
        Those that ended with their data connection, for the control thread to tell.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        epoch: bytes,
        sessions: dict[bytes, ServerSession],
        bounds: Bounds,
        libraries: LibraryStore,
        heartbeats: bool,
    ) -> None:
        self.stop = threading.Event()
        self.ended: deque[ServerSession] = deque()
        self.dropped: deque[ServerSession] = deque()
        self.interpreter: Interpreter | None = None
        self.clock = RunningCommand()
        self._epoch = epoch
        self._sessions = sessions
        self._bounds = bounds
        self._libraries = libraries
        self._next_look = 0.0
        # Why they ended, the latest ones.
        self._past: dict[bytes, str] = {}
        self._socket, self._watch = bind_router(context, address, bounds, heartbeats)
        self._socket.rcvtimeo = _POLL_MILLISECONDS
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self, driver: Driver) -> None:
        """Serve until `stop` is set, then free everything. Runs on the device thread."""
        self.interpreter = Interpreter(
            driver, self._libraries, self._bounds, self._send, clock=self.clock
        )
        try:
            while not self.stop.is_set():
                self._receive()
                while self.ended:
                    self._end(self.ended.popleft())
                self._look_for_gone()
        finally:
            for session in list(self._sessions.values()):
                self._end(session)
            self._libraries.close()
            self._watch.close()
            self._socket.close(linger=200)

    def _receive(self) -> None:
        frames = take(self._socket, wait=True)
        if frames is None:
            return
        self._watch.heard(frames[0])
        identity = frames[0].bytes
        sequence = None
        try:
            _, packed, chunk = split(frames)
            header = wire.unpack(packed)
            sequence = header.get("sequence")
            check_chunk(chunk)
            self._dispatch(identity, header, chunk)
        except Exception as error:
            self._refuse(identity, sequence, error)

    def _look_for_gone(self) -> None:
        """End the sessions whose connection has gone; control tells their clients."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        gone = self._watch.gone()
        for session in list(self._sessions.values()) if gone else ():
            if session.data_identity in gone:
                session.ended = session.ended or f"its data connection {GONE}"
                self.dropped.append(session)
                self._end(session)

    def _dispatch(self, identity: bytes, header: wire.Header, chunk: memoryview) -> None:
        epoch = header.get("epoch")
        if epoch != self._epoch:
            wire.octets(epoch, "epoch", 64)
            raise DeviceRestartedError(
                "this server started after the session did: its handles mean nothing here; "
                "open a new session"
            )
        token = wire.octets(header.get("session"), "session", 64)
        session = self._sessions.get(token)
        if session is None:
            why = self._past.get(token, "it was closed or went silent")
            raise DeviceLostError(f"the session has ended: {why}")
        session.data_identity = identity
        kind = header.get("type")
        if kind == "batch":
            self._accept(session, identity, header, chunk)
        elif kind == "credit":
            credit = session.download_credit + wire.integer(header.get("bytes"), "credit")
            session.download_credit = min(credit, self._bounds.download_window)
            self._continue(session)
        elif kind == "goodbye":
            self._end(session)
        else:
            raise ProtocolError(f"unknown message type {str(kind)[:60]!r}")

    def _accept(
        self, session: ServerSession, identity: bytes, header: wire.Header, chunk: memoryview
    ) -> None:
        message = Message(
            identity,
            wire.integer(header.get("sequence"), "sequence"),
            wire.integer(header.get("stream", 0), "stream", self._bounds.streams - 1),
            wire.array(header.get("commands"), "commands", self._bounds.commands),
            chunk,
        )
        if len(session.queue) >= self._bounds.unanswered:
            raise ProtocolError(
                f"{len(session.queue)} batches wait for an answer; at most "
                f"{self._bounds.unanswered} may"
            )
        session.queue.append(message)
        if session.job is None:
            self._continue(session)

    def _continue(self, session: ServerSession) -> None:
        """Run a session's batches until one waits for credit or none is left."""
        interpreter = self.interpreter
        assert interpreter is not None  # noqa: S101 - set before the first message
        try:
            while True:
                if session.job is None:
                    if not session.queue:
                        return
                    message = session.queue.popleft()
                    session.job = interpreter.run(session, message)
                for _ in session.job:
                    return
                session.job = None
        except ClientGoneError:
            self._end(session)
        except Exception:
            # A fault of ours must cost this session alone, and must be seen.
            traceback.print_exc()
            self._end(session)
            raise

    def _end(self, session: ServerSession) -> None:
        if self._sessions.pop(session.token, None) is None:
            return
        session.ended = session.ended or "it was closed"
        self._past[session.token] = session.ended
        if len(self._past) > _PAST_SESSIONS:
            del self._past[next(iter(self._past))]
        if self.interpreter is not None:
            self.interpreter.release(session)

    def _send(
        self,
        session: ServerSession,
        identity: bytes,
        header: wire.Header,
        parts: list[memoryview | bytes],
    ) -> zmq.MessageTracker | None:
        socket = self._socket
        more = zmq.SNDMORE | zmq.NOBLOCK
        packed = wire.pack(header)
        try:
            socket.send(identity, more)
            if not parts:
                socket.send(packed, zmq.NOBLOCK)
                return None
            socket.send(packed, more)
            chunk = parts[0] if len(parts) == 1 else b"".join(parts)
            if len(chunk) < _ZERO_COPY_BYTES:
                socket.send(chunk, zmq.NOBLOCK)
                return None
            return socket.send(chunk, zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError as error:
            # Unreachable, or a peer that reads no answers: either way nobody is there.
            raise ClientGoneError(str(error)) from error

    def _refuse(self, identity: bytes, sequence: object, error: Exception) -> None:
        """Tell a peer what was wrong with a message; it may be gone, or never read it."""
        reply: wire.Header = {"type": "error", "error": failure_to_wire(error)}
        if type(sequence) is int and 0 <= sequence <= wire.MAX_INTEGER:
            reply["sequence"] = sequence
        with suppress(zmq.ZMQError):
            self._socket.send(identity, zmq.SNDMORE | zmq.NOBLOCK)
            self._socket.send(wire.pack(reply), zmq.NOBLOCK)


def start(
    loop: DeviceLoop, open_driver: Callable[[], Driver], ready: Callable[[Driver | Exception], None]
) -> threading.Thread:
    """Open the driver and serve on a thread of its own.

    Parameters
    ----------
    ready
        Called on that thread with the driver once it is open, or with what went wrong.
    """

    def work() -> None:
        try:
            driver = open_driver()
        except Exception as error:
            ready(error)
            return
        ready(driver)
        try:
            loop.run(driver)
        finally:
            driver.close()

    thread = threading.Thread(target=work, name="tapml-device", daemon=True)
    thread.start()
    return thread
