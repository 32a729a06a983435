"""One session: its client, its worker, and the end of either.

A plain data connection goes to the worker for good; of any other, payloads are copied into shared
memory and headers passed on. Nothing here runs a command, and what waits runs on another thread.
When the worker dies or exceeds its deadline, what it was doing, how it ended and what it printed is
collected and then reported.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.failures import check_epoch, error_reply, failure_to_wire, lost_session, show_fault
from tapml_rpc.standard_error import print_fault
from tapml_rpc.supervisor.pipe import NOWHERE, Frame
from tapml_rpc.supervisor.plain_data import WorkerServed
from tapml_rpc.supervisor.relayed import Channel, RelayedData
from tapml_rpc.supervisor.worker_process import WorkerProcess, check_ready
from tapml_rpc.welcome import Bounds
from tapml_targets.child_process import is_busy
from tapml_targets.errors import (
    DeviceLostError,
    DeviceRestartedError,
    KernelTimeoutError,
    ProtocolError,
    TapmlError,
)

if TYPE_CHECKING:
    from tapml_rpc.blobs.messages import BlobRequests
    from tapml_rpc.blobs.store import Attachment

# How long a session counts that has worked: longer than it takes to look at all of them.
_LATELY_SECONDS: Final = 0.5


class Company:
    """The sessions of one device. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worked: dict[bytes, float] = {}

    def note(self, token: bytes, now: float | None = None) -> None:
        """A session works, at this time by the monotonic clock."""
        with self._lock:
            self._worked[token] = time.monotonic() if now is None else now

    def beside(self, token: bytes, now: float | None = None) -> bool:
        """Whether another session than this one has worked lately."""
        now = time.monotonic() if now is None else now
        with self._lock:
            return any(
                now - worked < _LATELY_SECONDS
                for other, worked in self._worked.items()
                if other != token
            )

    def leave(self, token: bytes) -> None:
        """A session has ended."""
        with self._lock:
            self._worked.pop(token, None)


_CLOSED: Final = "closed by the client"
# Seconds in which a hanging worker must begin, and then end, its answer with its stack.
_STACK_SECONDS: Final = 1.5
_TOLD_SECONDS: Final = 0.2
# Compiling kernels is slow on small boards, and is not a hang.
_LOAD_DEADLINE_FACTOR: Final = 10


class Deadline:
    """The deadline of one session's commands, in seconds."""

    def __init__(self, seconds: float, worker: WorkerProcess) -> None:
        self._seconds = seconds
        self._worker = worker
        self._last = worker.board.last
        self._asked_for_stack = 0.0

    def rest(self) -> None:
        """No command runs."""
        self._asked_for_stack = 0.0

    def check(
        self, now: float, sequence: int, index: int, started: float
    ) -> tuple[KernelTimeoutError, str] | None:
        """Check the running command: the error and the command's name once it is too late.

        `now` and `started` are by the monotonic clock; `index` is the command's place in the batch.
        """
        deadline = self._seconds
        if now - started <= deadline:
            # The name needs the batch's header unpacked: too costly ten times a second for each
            # session.
            self._asked_for_stack = 0.0
            return None
        command = self._last.name(sequence, index)
        if command.startswith("load("):
            deadline *= _LOAD_DEADLINE_FACTOR
        if now - started <= deadline:
            self._asked_for_stack = 0.0
        elif not self._asked_for_stack:
            self._asked_for_stack = now
            self._worker.ask_for_stack()
        elif now - self._asked_for_stack > (
            _TOLD_SECONDS if self._worker.stack() else _STACK_SECONDS
        ):
            error = KernelTimeoutError(
                f"the device has not finished after {deadline:g} s, in {command}; its worker was "
                "ended, and this session with it. A kernel loops for ever, or needs a longer "
                f"deadline{self._last.report((sequence, index, started))}"
            )
            return error, command
        return None


# Seconds it may do so, and seconds if it waits for a processor or a disk.
_IDLE_SECONDS: Final = 3.0
_BUSY_SECONDS: Final = 60.0


class Standstill:
    """Watches one session's worker."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        # When it last had nothing to do, or did something.
        self._moved = time.monotonic()

    def moved(self, now: float) -> None:
        """It runs a command, or has answered a batch."""
        self._moved = now

    def check(self, now: float, *, has_none: bool) -> float:
        """How long a worker that runs no command has stood still, in seconds; 0 if not too long.

        `now` is by the monotonic clock; `has_none`: there is no batch to begin.
        """
        if has_none or self._worker.waits_for_its_client():
            self._moved = now
            return 0.0
        idle = now - self._moved
        return (
            idle if idle > (_BUSY_SECONDS if is_busy(self._worker.pid) else _IDLE_SECONDS) else 0.0
        )


Work: TypeAlias = Callable[[], Callable[[], None]]
"""Work that may wait; it returns what is to follow it on the front's thread."""


class Relay:
    """A session's bridge; all methods run on the thread of its front.

    `worker` ends with the session. `kernel_deadline` is the longest time of one command and
    `silence_seconds` of a silent client, in seconds; 0 for never. `download_credit` bytes go to the
    client before it grants more. `keep` takes the worker of a session that its client has closed,
    with nothing under way; False if it is not kept. `on_end` is called once, with this, when the
    session has ended. `ended` says why the session is over, empty while it is not; `loss` is the
    error its client was sent, None if it was sent none. `losing`: its worker is being ended, to be
    reported. `background` does work on another thread, if any, and on this one what follows it.
    """

    def __init__(
        self,
        *,
        token: bytes,
        identity: str,
        epoch: bytes,
        channel: Channel,
        worker: WorkerProcess,
        bounds: Bounds,
        kernel_deadline: float,
        silence_seconds: float,
        download_credit: int,
        blobs: BlobRequests,
        lease: str = "",
        company: Company,
        keep: Callable[[WorkerProcess], bool] = lambda worker: False,
        on_end: Callable[[Relay], None] = lambda relay: None,
    ) -> None:
        self.token = token
        self.identity = identity
        self.lease = lease
        self._revoked = ""
        self.ended = ""
        self.loss: dict[str, Any] | None = None
        self.losing = False
        self.background: Callable[[Work], None] = lambda work: work()()
        self._epoch = epoch
        self._channel = channel
        self._worker = worker
        self._blobs = blobs
        # Requests about blobs and the batches behind them, oldest first, each with its bytes.
        self._asked: deque[tuple[Work, int]] = deque()
        self._bounds = bounds
        self._keep = keep
        self._on_end = on_end
        self._company = company
        self._ready = False
        self._seen = 0
        self._silence_seconds = silence_seconds
        self._heard = time.monotonic()
        self._standstill = Standstill(worker)
        self._deadline = Deadline(kernel_deadline, worker)
        self._relayed = RelayedData(worker, channel, bounds, self._write)
        self._served: WorkerServed | None = None
        grant = {"bounds": bounds.to_wire(), "download_credit": download_credit}
        with suppress(OSError):  # of a worker that has ended, which the first check finds
            worker.pipe.send(wire.pack({"type": "grant", **grant}))

    @property
    def device_bytes(self) -> int:
        """Device memory it holds, as its worker last reported."""
        return self._worker.board.device_bytes

    @property
    def pid(self) -> int:
        """Its worker's process."""
        return self._worker.pid

    def fileno(self) -> int:
        """The worker's socket, to be polled for reading; -1 once the session has ended."""
        return self._worker.pipe.fileno()

    def connect(self, connection: socket.socket, received: bytes) -> None:
        """Have the worker serve a data connection, now ours, of which `received` has been read."""
        if self.ended:
            connection.close()
        else:
            self._served = WorkerServed(connection)
            told = wire.pack({"type": "client", "session": self.token, "epoch": self._epoch})
            send, descriptor = self._worker.pipe.send, connection.fileno()
            self._write(lambda: send(told, received, descriptor=descriptor))

    def accept(self, header: wire.Header, packed: bytes, chunk: memoryview) -> None:
        """Take a relayed message of the client; raises TapmlError, for the client to read."""
        check_epoch(header, self._epoch)
        if self.ended:
            raise lost_session(self.ended)
        now = time.monotonic()
        self._heard = now
        kind = header.get("type")
        if kind == "batch":
            self._work(now)
            self._relayed.add(header, len(chunk))
            forward = partial(self._relayed.forward, packed, chunk)
            if self._asked:
                self._in_turn(lambda: forward, len(chunk))
            else:
                forward()
        elif kind == "credit":
            wire.integer(header.get("bytes"), "credit")
            self._relayed.forward(packed)
        elif kind == "goodbye":
            self.end(_CLOSED)
        elif kind == "blob":
            nbytes, most = sum(each[1] for each in self._asked) + len(chunk), self._bounds
            if len(self._asked) >= most.unanswered or nbytes > most.upload_window:
                raise ProtocolError("more requests about blobs wait for an answer than may")
            self._in_turn(partial(self._request, header, chunk), len(chunk))
        else:
            raise ProtocolError(f"unknown message type {str(kind)[:60]!r}")

    def control(self, header: wire.Header) -> wire.Header | None:
        """Take a control message; the reply, if any. Raises ProtocolError for an unknown one."""
        self._heard = time.monotonic()
        kind = header.get("type")
        if kind == "ping":
            return self._pong(header)
        if kind == "cancel":
            sequence = wire.integer(header.get("sequence"), "sequence")
            board = self._worker.board
            board.cancel_through = max(board.cancel_through, sequence)
        elif kind == "goodbye":
            self.end(_CLOSED)
        else:
            raise ProtocolError(f"unknown control message {str(kind)[:60]!r}")
        return None

    def readable(self) -> None:
        """Pass on the worker's messages."""
        pipe = self._worker.pipe
        if self.losing:
            return
        try:
            alive = pipe.receive()
            while not self.ended and (frame := pipe.next()) is not None:
                self._pass_on(frame)
        except (TapmlError, OSError) as error:
            self._lose(f"the worker of this session sent malformed messages: {error}")
            return
        if not alive and not self.ended:
            self._lose("the worker of this session died")

    def check(self, now: float) -> None:
        """Check deadline, silence, and a worker that does not read."""
        self._write(self._worker.pipe.flush)
        if self.ended or self.losing:
            return
        if self._revoked:
            self.give_up(self._revoked, kill=True)
            return
        if self._served is not None and self._served.gone():
            self.give_up("its data connection is gone")
            return
        running = self._worker.board.running()
        messages, self._seen = self._seen, self._worker.board.messages
        if messages != self._seen:
            self._standstill.moved(now)
            self._heard = now
        if running is not None or messages != self._seen:
            self._work(now)
        if running is not None:
            self._standstill.moved(now)
            if (over := self._deadline.check(now, *running)) is not None:
                self.end("over its deadline", *over, kill=True)
        else:
            self._deadline.rest()
            self._check_standstill(now)
        if not self.losing and 0 < self._silence_seconds < now - self._heard:
            self.give_up(f"silent for {now - self._heard:.0f} s")

    def guarded(self, work: Callable[[], None]) -> None:
        """Run the front's work; an internal fault ends this session only, and is shown."""
        try:
            work()
        except Exception as error:
            print_fault(error)
            self.end(f"its relay failed: {error}", kill=True)

    def revoke(self, why: str) -> None:
        """Have the session ended at the next :meth:`check`; callable from any thread."""
        self._revoked = why

    def give_up(self, why: str, *, kill: bool = False) -> None:
        """End it for a reason that its client may still receive."""
        self.end(why, DeviceLostError(f"this session was ended: {why}"), kill=kill)

    def end(
        self, why: str, error: TapmlError | None = None, command: str = "", *, kill: bool = False
    ) -> None:
        """End the session and its worker, free what both held, and tell the client an `error`."""
        if self.ended:
            return
        # First, because telling a channel that is gone ends the session again.
        self.ended = why
        if error is not None:
            self.loss = loss = failure_to_wire(error, command) | self._worker.last_words()
            self._channel.send_control(wire.pack({"type": "event", "error": loss}))
        self._company.leave(self.token)
        if not self._asked:
            self._blobs.close()
        if kill:
            self._worker.kill()
        # Off the list first: another front's thread may be reading every session's memory.
        self._on_end(self)
        after, worker = None, self._worker
        if self._served is not None:
            # On control it has been told already, unless that is gone.
            last = error_reply(lost_session(why), None) if self.loss is None else b""
            after = partial(self._part, self._served, last)
        elif why == _CLOSED and self._ready and self._relayed.has_none() and self._keep(worker):
            return
        worker.let_go(after)

    def _part(self, served: WorkerServed, last: bytes) -> None:
        """The worker has ended: say the last word, unless it broke off within a message."""
        served.part(b"" if self._worker.board.sending else last)

    def _work(self, now: float) -> None:
        """The session has work for the device."""
        self._company.note(self.token, now)
        self._worker.board.shared = self._company.beside(self.token, now)

    def _in_turn(self, work: Work, nbytes: int) -> None:
        """Have work done, and its `nbytes` released, once all earlier work has been."""
        self._asked.append((work, nbytes))
        if len(self._asked) == 1:
            self.background(self._next)

    def _next(self) -> Callable[[], None]:
        return partial(self._follow, self._asked[0][0]())

    def _follow(self, follow: Callable[[], None]) -> None:
        try:
            if not self.ended:
                follow()
        finally:
            self._asked.popleft()
            if self.ended:
                self._asked.clear()
                self._blobs.close()
            elif self._asked:
                self.background(self._next)

    def _request(
        self, header: wire.Header, chunk: memoryview, frame: Frame | None = None
    ) -> Callable[[], None]:
        """Handle a request about blobs, which may wait for a disk."""
        try:
            reply, attachment = self._blobs.handle(header, chunk)
        except Exception as error:
            show_fault(error)
            return partial(self._hand_over, error_reply(error, header), None, frame)
        return partial(self._hand_over, wire.pack(reply), attachment, frame)

    def _hand_over(self, reply: bytes, attachment: Attachment | None, frame: Frame | None) -> None:
        """Report a blob that the worker may or may no longer read to it, and answer the client."""
        if frame is not None and frame.start != NOWHERE:
            self._worker.down.release(frame.start, frame.nbytes)
        if attachment is not None:
            digest, descriptor, nbytes = attachment
            packed = wire.pack({"type": "attached", "digest": digest, "nbytes": nbytes})
            given = descriptor if descriptor >= 0 else None
            self._write(lambda: self._worker.pipe.send(packed, descriptor=given))
        if self._served is not None:
            self._write(lambda: self._worker.pipe.send(reply))
        else:
            self._taken(self._channel.send_data(reply, ()))

    def _write(self, send: Callable[[], None]) -> None:
        try:
            send()
        except ConnectionError:
            self._lose("the worker of this session died")
        except OSError as error:
            self._lose(f"the worker of this session does not read: {error}")

    def _pass_on(self, frame: Frame) -> None:
        header = wire.unpack(frame.packed)
        if not self._ready:
            self._ready = True
            try:
                check_ready(header)
            except TapmlError as error:
                self.end("its worker could not open the device", error)
            return
        if self._served is None:
            self._taken(self._relayed.pass_on(header, frame))
        elif header.get("type") == "goodbye":
            self.end(_CLOSED)
        elif header.get("type") == "lost":
            self.give_up(wire.text(header.get("why"), "why", 1000))
        else:
            self._answer_blob(header, frame)

    def _answer_blob(self, header: wire.Header, frame: Frame) -> None:
        """Answer what the client has asked about blobs, which its worker passes on."""
        chunk = memoryview(frame.inline)
        if frame.start != NOWHERE:
            chunk = self._worker.down.view(frame.start, frame.nbytes)
        self._in_turn(partial(self._request, header, chunk, frame), len(chunk))

    def _taken(self, taken: bool) -> None:
        if not taken:
            self.give_up("its client does not take its answers, or is gone")

    def _pong(self, header: wire.Header) -> wire.Header:
        board = self._worker.board
        pong: wire.Header = {
            "type": "pong",
            "sequence": wire.integer(header.get("sequence"), "sequence"),
            "answered": max(board.answered, 0),
        }
        running = board.running()
        if running is not None:
            pong["busy_seconds"] = round(max(0.0, time.monotonic() - running[2]), 3)
            pong["command"] = board.last.name(*running[:2])
        return pong

    def _check_standstill(self, now: float) -> None:
        has_none = self._relayed.has_none() or bool(self._asked)
        if self._served is not None:
            board = self._worker.board
            has_none = board.taken == board.answered and not self._served.unread()
        if seconds := self._standstill.check(now, has_none=has_none):
            self._lose(f"the worker of this session stood still for {seconds:.0f} s and was ended")

    def _lose(self, what: str) -> None:
        """The worker is gone or unusable: collect what it leaves behind, and report it."""
        if self.ended or self.losing:
            return
        self.losing = True
        running, last = self._worker.board.running(), self._worker.board.last
        command = last.name(*running[:2]) if running else ""
        where = f" in {command}" if command else " between two commands"
        shown = last.report(running)

        def end() -> Callable[[], None]:
            how = f"{self._worker.end(kill=True)}; a new session opens the device again"
            error = DeviceRestartedError(f"{what}{where}: {how}{shown}")
            return partial(self.end, what, error, command)

        self.background(end)
