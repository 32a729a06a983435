"""What a worker's process does: it opens the device, takes one session's batches, and runs them.

It may crash, hang or lose the device: that costs this session and nothing else.
"""

from __future__ import annotations

import gc
import socket
import time
from contextlib import suppress
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.attached_blobs import AttachedBlobs
from tapml_rpc.bounds import Bounds
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.interpreter import ClientGoneError, Interpreter
from tapml_rpc.libraries import LibraryStore
from tapml_rpc.running_batch import AFTER_ALL, RunningBatch
from tapml_rpc.server_session import Message, ServerSession
from tapml_rpc.supervisor.answers import Answers
from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.gate import Gate
from tapml_rpc.supervisor.own_reading import OwnReading
from tapml_rpc.supervisor.pipe import NOWHERE, Frame, Pipe
from tapml_rpc.supervisor.ring import Ring
from tapml_rpc.supervisor.shared_line import GATE, LINE
from tapml_rpc.supervisor.shared_reading import READ_BACK, READING, SharedReading
from tapml_targets.description_format import from_plain
from tapml_targets.driver import Driver, OpensMemory
from tapml_targets.platforms import load_driver_module

_READ_BACK: Final = wire.pack({"type": "read-back"})


class Worker:
    """One session's batches on an open driver.

    Parameters
    ----------
    pipe
        To the supervisor.
    up, down
        The rings that payloads come and go by.
    """

    def __init__(self, pipe: Pipe, up: Ring, down: Ring, *, allow_native: bool) -> None:
        self._pipe = pipe
        self._up = up
        self._board = Board(up)
        self._allow_native = allow_native
        self._driver: Driver
        self._sequence = 0
        # Batches that may not be answered yet, with what they hold of the ring.
        self._places: dict[int, tuple[int, int]] = {}
        self._session = _Session(b"", b"", 0, 0.0)
        self._session.board = self._board
        self._blobs = AttachedBlobs()
        self._answers = Answers(pipe, down, self._board)
        # Shared with the supervisor once its gate has come.
        self._connection: socket.socket | None = None
        self._reading: OwnReading | None = None
        # The batch that was taken last.
        self._taken = -1
        # Whether the device has ended all it had, but for chunks that were received into it.
        self._rested = False

    def run(self, device: dict[str, Any]) -> None:
        """Open the device and serve until the supervisor closes the socket."""
        description = from_plain(device)
        try:
            driver = load_driver_module(description.platform).open_device(description)
        except Exception as error:
            self._pipe.send(wire.pack({"type": "failed", "error": failure_to_wire(error)}))
            return
        self._driver = driver
        self._board.opens_memory = isinstance(driver, OpensMemory) and driver.opens_memory()
        self._pipe.send(wire.pack({"type": "ready"}))
        # What start-up made stays: the collector need not look at it again.
        gc.freeze()
        libraries = None
        try:
            grant = self._next_frame()
            if grant is None:
                return
            header = wire.unpack(grant.packed)
            bounds = Bounds.from_wire(header["bounds"])
            self._session.download_credit = header["download_credit"]
            libraries = LibraryStore(
                held_bytes=bounds.held_library_bytes,
                library_bytes=bounds.library_bytes,
                allow_native=self._allow_native,
            )
            interpreter = Interpreter(
                driver,
                libraries,
                bounds,
                self._send,
                clock=BoardClock(self._board, self._answers),
                pieces=self._answers,
                blobs=self._blobs,
            )
            while (message := self._next_message()) is not None:
                self._dispatch(interpreter, bounds, *message)
            interpreter.release(self._session)
            libraries.close()
        finally:
            driver.close()

    def _next_frame(self) -> Frame | None:
        while (frame := self._pipe.next()) is None:
            if not self._pipe.receive():
                return None
        return frame

    def _next_message(self) -> tuple[wire.Header, Frame] | None:
        """The next message of the supervisor, or of the client; None at the supervisor's end."""
        session = self._session
        while (reading := self._reading) is not None and reading.here():
            if (frame := self._pipe.next()) is not None:
                return wire.unpack(frame.packed), frame
            busy = session.job is not None or bool(session.queue) or self._board.shared
            message = reading.next(self._taken, busy=busy, rested=self._rested)
            if message is not None:
                return message
            if not reading.here():
                self._give_back()
            elif reading.wants_rest:
                # The supervisor may have the reading back meanwhile, as over any long kernel.
                self._finish()
                self._rested = True
            elif reading.wait() and not self._pipe.receive():
                return None
        frame = self._next_frame()
        return None if frame is None else (wire.unpack(frame.packed), frame)

    def _give_back(self) -> None:
        self._answers.reads = False
        self._pipe.send(_READ_BACK, place=(READ_BACK, 0))

    def _read_on(self, header: wire.Header, bounds: Bounds) -> None:
        """The supervisor lends the reading of the client's connection."""
        if self._reading is None and self._connection is not None:
            shared = SharedReading(self._pipe.descriptors.popleft())
            self._reading = OwnReading(
                self._connection, shared, header, bounds, self._pipe, self._board
            )
        if self._reading is not None:
            self._answers.reads = True
            self._reading.begin(wire.integer(header.get("lent"), "lent"))

    def _dispatch(
        self, interpreter: Interpreter, bounds: Bounds, header: wire.Header, frame: Frame
    ) -> None:
        session = self._session
        if header["type"] == "credit":
            credit = session.download_credit + wire.integer(header.get("bytes"), "credit")
            session.download_credit = min(credit, bounds.download_window)
        elif header["type"] == "blob":
            nbytes = header["nbytes"]
            descriptor = self._pipe.descriptors.popleft() if nbytes else -1
            self._blobs.receive(header["digest"], descriptor, nbytes)
            return
        elif header["type"] == LINE:
            self._connection = socket.socket(fileno=self._pipe.descriptors.popleft())
            return
        elif header["type"] == GATE and self._connection is not None:
            self._answers.open_line(self._connection, Gate(self._pipe.descriptors.popleft()))
            return
        elif header["type"] == READING:
            self._read_on(header, bounds)
            return
        else:
            self._rested = frame.arriving is not None
            chunk: memoryview = memoryview(frame.inline)
            sequence = self._taken = wire.integer(header.get("sequence"), "sequence")
            if frame.start != NOWHERE:
                chunk = self._up.view(frame.start, frame.nbytes)
                self._places[sequence] = (frame.start, frame.nbytes)
            session.queue.append(
                Message(
                    b"",
                    sequence,
                    wire.integer(header.get("stream", 0), "stream", bounds.streams - 1),
                    wire.array(header.get("commands"), "commands", bounds.commands),
                    chunk,
                    frame.arriving,
                )
            )
            if session.job is not None:
                return
        try:
            self._continue(interpreter)
        except ClientGoneError:
            self._lose_client()

    def _lose_client(self) -> None:
        """The client's connection broke off in a chunk; the supervisor ends the session."""
        self._session.job = None
        if self._reading is not None:
            self._reading.give_up()
        with suppress(ConnectionError):
            self._give_back()

    def _continue(self, interpreter: Interpreter) -> None:
        session = self._session
        while True:
            if session.job is None:
                if not session.queue:
                    return
                message = session.queue.popleft()
                self._sequence = message.sequence
                session.job = interpreter.run(session, message)
            for _ in session.job:
                self._answers.flush()
                self._board.paused = True
                return
            self._board.paused = False
            session.job = None

    def _send(
        self,
        session: ServerSession,
        identity: bytes,
        header: wire.Header,
        parts: list[memoryview | bytes],
    ) -> None:
        packed = wire.pack(header)
        if header["type"] != "done":
            self._answers.send(packed, parts)
            return
        # A heartbeat after the answer says no less than the answer.
        self._board.device_bytes = session.nbytes
        if self._board.shared:
            # So that the other sessions' turns come.
            self._finish()
        # The client may fill that again as soon as it has the answer.
        place = self._places.pop(self._sequence, None)
        if place is not None:
            self._up.release(*place)
        much = place is not None
        self._answers.send(packed, parts, answers=self._sequence, brought_much=much)

    def _finish(self) -> None:
        """Let the device end what it has."""
        self._board.begin(self._sequence, AFTER_ALL, time.monotonic_ns())
        # An error that comes late belongs to the next fence.
        with suppress(Exception):
            self._driver.finish()
        self._board.rest()


class BoardClock:
    """Says on the board what runs; see :class:`tapml_rpc.command_clock.CommandClock`."""

    def __init__(self, board: Board, answers: Answers) -> None:
        self._board = board
        self._answers = answers
        self.rest = board.rest

    def begin(self, batch: RunningBatch) -> None:
        """See :class:`CommandClock`; what is held back is sent before."""
        if self._answers.held is not None:
            self._answers.flush()
        # From now on: what the client took its time for is no time of the command.
        self._board.begin(batch.message.sequence, batch.place, time.monotonic_ns())


class _Session(ServerSession):
    """The session, whose cancellation is read off the board."""

    board: Board

    @property
    def cancel_through(self) -> int:
        return self.board.cancel_through

    @cancel_through.setter
    def cancel_through(self, value: int) -> None:
        """The supervisor's to write."""
