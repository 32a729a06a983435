"""Runs batches: in order, past errors, pausing when a download has no credit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tapml_rpc import wire
from tapml_rpc.device.commands import Commands, PieceMemory, Send
from tapml_rpc.device.libraries import AttachedBlobs, LibraryStore
from tapml_rpc.device.session_state import (
    AFTER_ALL,
    CommandClock,
    Message,
    RunningBatch,
    ServerSession,
    place_in,
)
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.welcome import Bounds
from tapml_targets.driver import BatchesCommands, Driver
from tapml_targets.errors import ProtocolError, RemoteError

# These run after a failure too: a client must always be able to free memory.
_ALWAYS: Final = frozenset({"forget", "free", "unload", "reset"})


class ClientGoneError(Exception):
    """The client's connection takes no more messages."""


class Interpreter:
    """Commands over one open driver. All methods run on the device thread.

    `send` sends a header and a chunk's parts, or raises ClientGoneError. The other arguments are
    those of :class:`Commands`.
    """

    def __init__(
        self,
        driver: Driver,
        libraries: LibraryStore,
        blobs: AttachedBlobs,
        bounds: Bounds,
        send: Send,
        *,
        clock: CommandClock | None = None,
        pieces: PieceMemory | None = None,
    ) -> None:
        self._driver = driver
        self._gathers = driver if isinstance(driver, BatchesCommands) else None
        self._libraries = libraries
        self._send = send
        self._clock = CommandClock() if clock is None else clock
        self._commands = Commands(
            driver, libraries, blobs, bounds, send, clock=self._clock, pieces=pieces
        )

    def run(self, session: ServerSession, message: Message) -> Iterator[None]:
        """Run a batch and answer it; yields while it waits for the client's credit."""
        batch = RunningBatch(session, message)
        try:
            yield from self._run_commands(batch)
        finally:
            self._clock.rest()
        if self._gathers is not None:
            self._hand_on(batch, self._gathers)
        self._answer(batch)

    def release(self, session: ServerSession) -> None:
        """Free everything a session holds, as far as the device allows."""
        session.job = None
        if self._gathers is not None:
            # Work of an abandoned batch; its errors concern nobody.
            with suppress(Exception):
                self._gathers.flush()
        session.queue.clear()
        session.bound.clear()
        session.programs.clear()
        for held in session.buffers.values():
            self._driver.free(held.buffer)
        session.buffers.clear()
        session.nbytes = 0
        self._commands.allocations.free_spare(session)
        for built in session.libraries.values():
            self._libraries.release(built)
        session.libraries.clear()

    def _run_commands(self, batch: RunningBatch) -> Iterator[None]:
        """Run commands, each timed; the time between two of them, microseconds, counts too."""
        session, message = batch.session, batch.message
        sequence = message.sequence
        handlers, begin = self._commands.handlers, self._clock.begin
        for index, command in enumerate(message.commands):
            batch.command, batch.place = command, index
            try:
                name = command[0]
                count, handler = handlers[name]
            except (TypeError, LookupError):
                name = command[0] if isinstance(command, list) and command else command
                why = f"unknown command {str(name)[:60]!r}; known: {', '.join(handlers)}"
                self._fail(batch, index, ProtocolError(why))
                continue
            if session.failure is not None and name not in _ALWAYS and name != "load":
                continue
            try:
                if sequence <= session.cancel_through and name not in _ALWAYS:
                    raise RemoteError("cancelled by the client before it ran")
                begin(batch)
                fields = command[1:]
                if len(fields) != count:
                    raise ProtocolError(f"wrong number of fields in {name!r}")
                paused = handler(batch, index, fields)
                if paused is not None:
                    for _ in paused:
                        if self._gathers is not None:
                            self._gathers.flush()
                        yield
            except ClientGoneError:
                raise
            except Exception as error:
                if name == "load":
                    # A kernel that does not build is the caller's to handle, and no other work's.
                    batch.give(index, failure_to_wire(error, command, index))
                else:
                    self._fail(batch, index, error)

    def _hand_on(self, batch: RunningBatch, driver: BatchesCommands) -> None:
        """Start all of a batch on the device: when another one comes is unknown."""
        try:
            self._clock.begin(batch)
            driver.flush()
        except Exception as error:
            self._fail(batch, place_in(batch.place)[0], error)
        finally:
            self._clock.rest()

    def _fail(self, batch: RunningBatch, index: int, error: Exception) -> None:
        if batch.session.failure is None:
            failure = failure_to_wire(error, batch.command, index)
            if batch.program is not None:
                inner = place_in(batch.place)[1]
                failure |= {"program": batch.program, "place": inner}
                where = f"command {inner} of program {batch.program!r}: "
                failure["command"] = where + failure["command"]
            batch.session.failure = failure
        batch.leave()

    def _answer(self, batch: RunningBatch) -> None:
        session, message = batch.session, batch.message
        if batch.timed and session.failure is None:
            try:
                batch.command, batch.place = "fence after a timed call", AFTER_ALL
                self._clock.begin(batch)
                self._driver.finish()
                for result, report in batch.timed:
                    result[0] = report.kernel_nanoseconds() if report.kernel_nanoseconds else None
            except Exception as error:
                self._fail(batch, len(message.commands), error)
            finally:
                self._clock.rest()
        header: wire.Header = {"type": "done", "sequence": message.sequence}
        if batch.results:
            header["results"] = batch.results
        if session.failure is not None:
            header["error"] = session.failure
        session.answered = message.sequence
        try:
            self._send(header, batch.inline)
        except ProtocolError as error:
            # Results that do not fit any header: the session continues without them.
            batch.command, batch.place = "the answer to a batch", AFTER_ALL
            self._fail(batch, len(message.commands), error)
            failed = {"type": "done", "sequence": message.sequence, "error": session.failure}
            self._send(failed, [])
