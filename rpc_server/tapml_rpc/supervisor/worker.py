"""The process of one session: it ends with its supervisor, and is killed first for memory."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from tapml_rpc import wire
from tapml_rpc.device.interpreter import ClientGoneError, Interpreter
from tapml_rpc.device.libraries import AttachedBlobs, LibraryStore
from tapml_rpc.device.session_state import AFTER_ALL, Message, ServerSession
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.supervisor.board import STACK_SIGNAL, Board, BoardClock
from tapml_rpc.supervisor.pipe import Pipe, Ring
from tapml_rpc.supervisor.relayed import Received, RelayedChannel
from tapml_rpc.supervisor.socket_channel import SocketChannel
from tapml_rpc.welcome import Bounds
from tapml_targets.description import from_plain, to_plain
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.platforms import load_driver_module
from tapml_targets.template import fork_children

# Message types between a supervisor and its workers: a client's connection, with its descriptor;
# a blob, with its descriptor unless the session has released it.
CLIENT: Final = "client"
ATTACHED: Final = "attached"
# The session has ended and another will come, on channels that come with four of these.
AGAIN: Final = "again"
_CHANNELS: Final = 4


class Worker:
    """One session's batches on an open driver.

    It owns the descriptors: `pipe` leads to the supervisor, `up` and `down` hold what is relayed. A
    plain data connection comes through the pipe instead, and is served here.
    """

    def __init__(self, pipe: int, up: int, down: int, board: int, *, allow_native: bool) -> None:
        self._pipe = Pipe(socket.socket(fileno=pipe))
        self._rings = Ring(up), Ring(down)
        self._board = Board(board)
        self._allow_native = allow_native
        self._driver: Driver
        self._libraries: LibraryStore | None = None
        self._sequence = 0
        # Whether a batch waits for the client's credit.
        self._paused = False
        self._session = _Session(0)
        self._session.board = self._board
        self._blobs = AttachedBlobs()
        self._supervisor = RelayedChannel(self._pipe, *self._rings, self._board)
        self._channel: RelayedChannel | SocketChannel = self._supervisor

    def run(self, device: str, limits: str) -> None:
        """Open the device and serve until the supervisor closes the pipe.

        `device` is a name, or a description as JSON; a profile's `limits` hold for it, if named.
        """
        try:
            found = _described(device)
            # It is announced as it is: who names a profile checks against both.
            opened_as = _narrowed(found, limits) if limits else found
            driver = load_driver_module(found.platform).open_device(opened_as)
        except Exception as error:
            self._pipe.send(wire.pack({"type": "failed", "error": failure_to_wire(error)}))
            return
        self._driver = driver
        # What start-up made stays: the garbage collector need not visit it again.
        gc.freeze()
        worker: Worker | None = self
        try:
            while worker is not None:
                worker._pipe.send(wire.pack({"type": "ready", "device": to_plain(found)}))
                worker = worker._serve_one()
        finally:
            driver.close()

    def _serve_one(self) -> Worker | None:
        """Serve one session; return what serves the next one, or None."""
        grant, first = self._supervisor.next(), self._supervisor.next()
        if grant is None or first is None or not self._serve(grant.header, first):
            return None
        # A device that has an error left is opened again.
        self._driver.finish()
        while len(self._pipe.descriptors) < _CHANNELS:
            if self._supervisor.next() is None:
                return None
        channels = list(self._pipe.descriptors)
        self._pipe.descriptors.clear()
        # `run` and what refers to each other keep this object: what it holds goes now.
        for each in (self._blobs, self._pipe, *self._rings, self._board):
            each.close()
        other = Worker(*channels, allow_native=self._allow_native)
        other._driver, other._libraries = self._driver, self._libraries
        return other

    def _serve(self, grant: wire.Header, first: Received) -> bool:
        """Serve the session to its end; whether another is to come, after one without a failure."""
        bounds = Bounds.from_wire(grant["bounds"])
        self._session.download_credit = grant["download_credit"]
        messages = [first]
        if first.header["type"] == CLIENT:
            connection = socket.socket(fileno=self._pipe.descriptors.popleft())
            received = bytes(first.chunk)
            self._channel = SocketChannel(
                connection, received, first.header, bounds, self._board, self._pipe
            )
            messages.clear()
        libraries = self._libraries = self._libraries or LibraryStore(
            self._driver, library_bytes=bounds.library_bytes, allow_native=self._allow_native
        )
        interpreter = Interpreter(
            self._driver,
            libraries,
            self._blobs,
            bounds,
            self._send,
            clock=BoardClock(self._board),
            pieces=self._channel,
        )
        again = False
        try:
            for message in chain(messages, iter(self._channel.next, None)):
                again = message.header["type"] == AGAIN
                if again:
                    break
                self._dispatch(interpreter, bounds, message)
        except ClientGoneError as error:
            if isinstance(self._channel, SocketChannel):
                self._channel.lose(error)
        interpreter.release(self._session)
        if not again:
            libraries.close()
        return again and self._session.failure is None

    def _dispatch(self, interpreter: Interpreter, bounds: Bounds, message: Received) -> None:
        session, header = self._session, message.header
        kind = header["type"]
        if kind == ATTACHED:
            self._attach(header)
        elif kind == "blob":
            self._ask(message)
        elif kind == "credit":
            credit = session.download_credit + wire.integer(header.get("bytes"), "credit")
            session.download_credit = min(credit, bounds.download_window)
            self._continue(interpreter)
        else:
            session.queue.append(
                Message(
                    wire.integer(header.get("sequence"), "sequence"),
                    wire.array(header.get("commands"), "commands", bounds.commands),
                    message.chunk,
                )
            )
            if session.job is None:
                self._continue(interpreter)

    def _attach(self, header: wire.Header) -> None:
        nbytes = header["nbytes"]
        descriptor = self._pipe.descriptors.popleft() if nbytes else -1
        self._blobs.receive(header["digest"], descriptor, nbytes)

    def _ask(self, message: Received) -> None:
        """Have the supervisor answer about blobs; what the client sent behind waits."""
        self._supervisor.send(message.packed, [message.chunk])
        # The blob may have to be read from a disk: this process does not stand still.
        self._board.paused = True
        while (reply := self._supervisor.next()) is not None:
            if reply.header["type"] != ATTACHED:
                self._board.paused = False
                self._channel.send(reply.packed)
                return
            self._attach(reply.header)

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
                self._paused = self._board.paused = True
                return
            if self._paused:
                self._paused = self._board.paused = False
            session.job = None

    def _send(self, header: wire.Header, parts: list[memoryview | bytes]) -> None:
        packed = wire.pack(header)
        if header["type"] == "done":
            # A heartbeat after the answer adds nothing to the answer.
            self._board.device_bytes = self._session.nbytes
            if self._board.shared:
                self._finish()
            self._channel.answered(self._sequence)
            self._board.answered = self._sequence
        self._channel.send(packed, parts)

    def _finish(self) -> None:
        """Answer no earlier than the device is done: other sessions have work for it too."""
        self._board.begin(self._sequence, AFTER_ALL, time.monotonic_ns())
        # A late error belongs to the next fence.
        with suppress(Exception):
            self._driver.finish()
        self._board.rest()


class _Session(ServerSession):
    """The session, whose cancellation is read off the board."""

    board: Board

    @property
    def cancel_through(self) -> int:
        return self.board.cancel_through

    @cancel_through.setter
    def cancel_through(self, value: int) -> None:
        """Written by the supervisor."""


_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
# Priority for the system's out-of-memory killer: -1000 never, 1000 first.
_OOM_SCORE: Final = "700"
# Drivers that load machine code check this.
_ALLOW_VARIABLE: Final = "TAPML_ALLOW_SHARED_LIBRARIES"


def _described(device: str) -> DeviceDescription:
    if device.startswith("{"):
        return from_plain(json.loads(device))
    # A supervisor has found the device: its workers need neither the search nor profiles.
    from tapml_targets.ranking import find_device

    return find_device(device)


def _narrowed(device: DeviceDescription, limits: str) -> DeviceDescription:
    from tapml_targets.limit_profiles import narrowed

    return narrowed(device, limits)


def _stay_behind_nobody(parent: int, name: bytes) -> None:
    """End with the parent, however that ends and whatever a driver is doing here.

    `parent` is 0 where another program stands between, which may have started this one. `name` is
    what ``ps`` shows.
    """
    with suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(_PR_SET_NAME, name)
    if parent and os.getppid() != parent:
        os._exit(1)


def _options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tapml_rpc.supervisor.worker")
    parser.add_argument("channels", type=int, nargs="+")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--template", default="")
    parser.add_argument("--device", default="")
    parser.add_argument("--limits", default="")
    parser.add_argument("--allow-shared-libraries", action="store_true")
    return parser.parse_args(arguments)


def main() -> int:
    """Entry point of the worker, and of the template that forks workers of a platform."""
    options = _options()
    # All processes of a terminal or service may be interrupted: the supervisor ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.template:
        _stay_behind_nobody(options.parent, b"tapml-template")
        options = _options(fork_children(options.channels[0], options.template))
    _stay_behind_nobody(options.parent, b"tapml-worker")
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        faulthandler.register(STACK_SIGNAL, all_threads=True)
    os.environ[_ALLOW_VARIABLE] = str(int(options.allow_shared_libraries))
    worker = Worker(*options.channels, allow_native=options.allow_shared_libraries)
    try:
        worker.run(options.device, options.limits)
    except ConnectionError:
        # The supervisor has closed the pipe. Other system faults, such as no memory, are reported.
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    # A driver's threads may outlive the interpreter.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
