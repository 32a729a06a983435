"""The device thread: owns the data socket and the driver, and runs batches as they come.

One thread receives, runs and answers, because handing a message from thread to thread costs more
than a small kernel. So heartbeats and cancellation have their own socket and thread
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
from tapml_rpc.refusals import check_epoch, lost_session
from tapml_rpc.router import GONE, bind_router, check_chunk, split, take
from tapml_rpc.server_session import Message, ServerSession
from tapml_rpc.window import Window
from tapml_targets.driver import Driver
from tapml_targets.errors import DeviceLostError, ProtocolError

_POLL_MILLISECONDS: Final = 100
_LOOK_SECONDS: Final = 0.1
_PAST_SESSIONS: Final = 64
_ZERO_COPY_BYTES: Final = 64 << 10


class DeviceLoop:
    """Serves batches on the data socket until stopped.

    `sessions` are all of them by token; the control thread adds them, this thread removes them.
    `epoch` is random and identifies this server's lifetime. With `heartbeats` vanished hosts are
    noticed. `ended` sessions are for this thread to free; `clock` tells the control thread what the
    device does; `dropped` are sessions that ended with their data connection, whose clients control
    notifies.
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
        # Why the latest ones ended.
        self._past: dict[bytes, str] = {}
        self._windows: dict[bytes, Window] = {}
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

    def lost(self, token: bytes) -> DeviceLostError:
        """The answer to messages of an ended session; from any thread."""
        session = self._sessions.get(token)
        return lost_session(self._past.get(token, "") if session is None else session.ended)

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
        """End the sessions whose connection has gone; control notifies their clients."""
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
        check_epoch(header, self._epoch)
        token = wire.octets(header.get("session"), "session", 64)
        session = self._sessions.get(token)
        if session is None or session.ended:
            raise self.lost(token)
        if session.data_identity not in (b"", identity):
            raise ProtocolError("this session's data comes over another connection")
        session.data_identity = identity
        kind = header.get("type")
        if kind == "batch":
            self._accept(session, identity, header, chunk)
        elif kind == "credit":
            credit = session.download_credit + wire.integer(header.get("bytes"), "credit")
            session.download_credit = min(credit, self._bounds.download_window)
            self._continue(session)
        elif kind == "goodbye":
            session.ended = "closed by the client"
            self._end(session)
        else:
            raise ProtocolError(f"unknown message type {str(kind)[:60]!r}")

    def _accept(
        self, session: ServerSession, identity: bytes, header: wire.Header, chunk: memoryview
    ) -> None:
        if (window := self._windows.get(session.token)) is None:
            window = self._windows[session.token] = Window(self._bounds)
        sequence = window.add(header, len(chunk))
        stream, commands = header.get("stream", 0), header["commands"]
        session.queue.append(Message(identity, sequence, stream, commands, chunk))
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
            # An internal fault must cost only this session, and must be seen.
            traceback.print_exc()
            session.ended = session.ended or "the server failed in one of its batches"
            self._end(session)
            raise

    def _end(self, session: ServerSession) -> None:
        if session.token not in self._sessions:
            return
        session.ended = session.ended or "its client does not take its answers, or is gone"
        # Noted before it is removed: the control thread may be asked meanwhile.
        self._past[session.token] = session.ended
        if len(self._past) > _PAST_SESSIONS:
            del self._past[next(iter(self._past))]
        del self._sessions[session.token]
        self._windows.pop(session.token, None)
        if self.interpreter is not None:
            self.interpreter.release(session)

    def _send(
        self,
        session: ServerSession,
        identity: bytes,
        header: wire.Header,
        parts: list[memoryview | bytes],
    ) -> zmq.MessageTracker | None:
        if header["type"] == "done":
            self._windows[session.token].answered(header["sequence"])
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
            # Unreachable, or a peer that reads no answers: either way it is lost.
            raise ClientGoneError(str(error)) from error

    def _refuse(self, identity: bytes, sequence: object, error: Exception) -> None:
        """Report to a peer what was wrong with a message; it may be gone, or never read it."""
        reply: wire.Header = {"type": "error", "error": failure_to_wire(error)}
        if type(sequence) is int and 0 <= sequence <= wire.MAX_INTEGER:
            reply["sequence"] = sequence
        with suppress(zmq.ZMQError):
            self._socket.send(identity, zmq.SNDMORE | zmq.NOBLOCK)
            self._socket.send(wire.pack(reply), zmq.NOBLOCK)


def start(
    loop: DeviceLoop, open_driver: Callable[[], Driver], ready: Callable[[Driver | Exception], None]
) -> threading.Thread:
    """Open the driver and serve on a thread.

    `ready` is called there with the driver or the error.
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
