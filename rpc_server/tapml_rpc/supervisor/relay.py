"""One session: batches from its client to its worker, answers back, and the end of either.

Nothing here waits, and nothing here runs a command: a relay copies payloads into shared memory,
passes headers on, and watches the clock. When the worker dies or is over its deadline, what it was
doing, how it ended and what it printed are collected first, and then told.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.scattered import Chunk, in_one_piece
from tapml_rpc.supervisor.channel import Channel
from tapml_rpc.supervisor.deadline import Deadline
from tapml_rpc.supervisor.downloads import Downloads
from tapml_rpc.supervisor.last_commands import LastCommands
from tapml_rpc.supervisor.lent_reading import LentReading
from tapml_rpc.supervisor.pipe import Frame
from tapml_rpc.supervisor.refusals import check_epoch
from tapml_rpc.supervisor.ring import Room
from tapml_rpc.supervisor.shared_line import SENT, SharedLine
from tapml_rpc.supervisor.shared_reading import READ_BACK
from tapml_rpc.supervisor.silence import Silence
from tapml_rpc.supervisor.standstill import Standstill
from tapml_rpc.supervisor.turns import Turns
from tapml_rpc.supervisor.uploads import Uploads
from tapml_rpc.supervisor.worker_loss import end_and_report
from tapml_rpc.supervisor.worker_process import WorkerProcess, check_ready
from tapml_targets.errors import DeviceLostError, ProtocolError, TapmlError

if TYPE_CHECKING:
    from tapml_rpc.blobs.messages import BlobDesk
    from tapml_rpc.blobs.store import Attachment
    from tapml_rpc.zmtp.peer import Peer

_PROBE: Final = wire.pack({"type": "probe"})


class Relay:
    """A session's bridge; all methods run on the thread of its front.

    Parameters
    ----------
    token, identity, epoch
        Who may speak for the session, and in which life of the supervisor.
    worker
        Its worker; ended with the session.
    kernel_deadline
        Longest time of one command in seconds.
    silence_seconds
        A client that says nothing for so long is given up; 0 for never.
    download_credit
        Bytes the client takes before it says more.
    desk
        Its blobs; None where none are kept.
    lease
        The tracker's lease that it came with; empty for none.
    turns
        Those of all sessions.
    on_end
        Called once, with this, when the session has ended.

    Attributes
    ----------
    ended
        Why the session is over; empty while it is not.
    loss
        What the client was told of that, as on the wire; None where it was told nothing.
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
        desk: BlobDesk | None,
        lease: str,
        turns: Turns,
        on_end: Callable[[Relay], None],
    ) -> None:
        self.token = token
        self.identity = identity
        self.lease = lease
        self._revoked = ""
        self.ended = ""
        self.loss: dict[str, Any] | None = None
        self._epoch = epoch
        self._channel = channel
        self._worker = worker
        self._desk = desk
        self._on_end = on_end
        self._ready = False
        self._silence = Silence(silence_seconds)
        self._standstill = Standstill(worker)
        self._last = LastCommands()
        self._line = SharedLine()
        self._deadline = Deadline(kernel_deadline, worker, self._last)
        self._downloads = Downloads(worker, channel, self._line, self._answered)
        self._uploads = Uploads(token, worker, bounds, turns, self._last, self._write)
        self._lent = LentReading(token, epoch, worker, self._uploads, turns, self._write)
        grant = {"bounds": bounds.to_wire(), "download_credit": download_credit}
        worker.pipe.send(wire.pack({"type": "grant", **grant}))

    @property
    def device_bytes(self) -> int:
        """Device memory it holds, as its worker last said."""
        return self._worker.board.device_bytes

    @property
    def pid(self) -> int:
        """Its worker's process."""
        return self._worker.pid

    def fileno(self) -> int:
        """The worker's socket, to be polled for reading; -1 once the session has ended."""
        return self._worker.pipe.fileno()

    def busy_seconds(self) -> float:
        """How long the present command has been running; 0 while idle."""
        running = self._worker.board.running()
        return max(0.0, time.monotonic() - running[2]) if running else 0.0

    def share(self, peer: Peer) -> None:
        """Let the worker send on the client's data connection, beside this process."""
        self._line.open(peer, self._worker.pipe)

    def lend_reading(self, peer: Peer) -> None:
        """Let the worker read from it as well, if that is of use, and nobody else's messages come.

        Only on the connection that :meth:`share` has shared.
        """
        # What a blob's answer tells the worker must not be overtaken by what its client says then.
        waits = self._desk is not None and self._desk.waits
        if not self.ended and peer.turn is self._line and not waits:
            self._lent.lend(peer)

    def room(self, header: wire.Header, nbytes: int) -> Room | None:
        """Where a message's chunk is best read to: :meth:`Uploads.room`."""
        return self._uploads.room(header, nbytes)

    def refuse(self, room: Room) -> None:
        """Nothing will come of a message that was given room."""
        self._uploads.refuse(room)

    def accept(self, header: wire.Header, packed: bytes, chunk: Chunk | Room) -> None:
        """Take a data message of the client.

        Raises
        ------
        TapmlError
            What is wrong with it, for the client to read.
        """
        check_epoch(header, self._epoch)
        self._silence.broken(time.monotonic())
        kind = header.get("type")
        self._downloads.settle()
        if kind == "batch":
            self._uploads.add(header, packed, chunk)
        elif kind == "credit":
            wire.integer(header.get("bytes"), "credit")
            self._uploads.forward(packed)
        elif kind == "goodbye":
            self.end("closed by the client")
        elif kind == "blob" and self._desk is not None and not isinstance(chunk, Room):
            self._hand_over(*self._desk.handle(header, in_one_piece(chunk)))
        else:
            raise ProtocolError(f"unknown message type {str(kind)[:60]!r}")

    def control(self, header: wire.Header) -> wire.Header | None:
        """Take a control message of the client; the reply, where there is one.

        Raises
        ------
        ProtocolError
            If there is no such message.
        """
        self._silence.broken(time.monotonic())
        kind = header.get("type")
        if kind == "ping":
            return self._pong(header)
        if kind == "cancel":
            sequence = wire.integer(header.get("sequence"), "sequence")
            board = self._worker.board
            board.cancel_through = max(board.cancel_through, sequence)
        elif kind == "goodbye":
            self.end("closed by the client")
        else:
            raise ProtocolError(f"unknown control message {str(kind)[:60]!r}")
        return None

    def readable(self) -> None:
        """Pass on what the worker says."""
        pipe = self._worker.pipe
        try:
            alive = pipe.receive()
            while not self.ended and (frame := pipe.next()) is not None:
                self._pass_on(frame)
        except (TapmlError, OSError) as error:
            self._lose(f"the worker of this session sent nonsense: {error}")
            return
        if not alive and not self.ended:
            self._lose("the worker of this session died")

    def check(self, now: float) -> None:
        """Look at the clock: deadline, silence, a worker that does not read."""
        if self.ended:
            return
        if self._revoked:
            self.give_up(self._revoked, kill=True)
            return
        self._write(self._worker.pipe.flush)
        self._downloads.settle()
        if not self.ended and self._lent.check(self._downloads.answered):
            self._silence.broken(now)
        if self._over():
            return
        for reply, attachment in self._desk.due() if self._desk is not None else ():
            self._hand_over(reply, attachment)
        running = self._worker.board.running()
        if running is not None:
            self._standstill.moved(now)
            if (over := self._deadline.check(now, *running)) is not None:
                self._tell(*over)
                self.end("over its deadline", kill=True)
        else:
            self._deadline.rest()
            self._check_standstill(now)
        if self._over():
            return
        if silence := self._silence.check(now):
            self.give_up(f"silent for {silence:.0f} s")
        elif self._silence.asks_for_probe(now) and not self._channel.send_control(_PROBE):
            self.end("its connection is gone")

    def guarded(self, work: Callable[[], None]) -> None:
        """Do what its front has to do; a fault of ours costs this session, and is seen."""
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            self.end(f"its relay failed: {error}", kill=True)

    def revoke(self, why: str) -> None:
        """Have the session ended at the next :meth:`check`; callable from any thread."""
        self._revoked = why

    def give_up(self, why: str, *, kill: bool = False) -> None:
        """End it for a reason that its client may be there to hear."""
        if not self.ended:
            self._tell(DeviceLostError(f"this session was ended: {why}"), "")
            self.end(why, kill=kill)

    def end(self, why: str, *, kill: bool = False) -> None:
        """End the session and its worker, and free what both held."""
        if self.ended:
            return
        self.ended = why
        self._lent.close(self._downloads.answered)
        self._uploads.close()
        self._line.close()
        if self._desk is not None:
            self._desk.close()
        if kill:
            self._worker.kill()
        # Off the list first: another front's thread may be looking at every session's memory.
        self._on_end(self)
        self._worker.let_go()

    def _over(self) -> bool:
        return bool(self.ended)

    def _hand_over(self, reply: wire.Header | None, attachment: Attachment | None) -> None:
        """Tell the worker of a blob it may look at, or may no more, and answer the client."""
        if attachment is not None:
            digest, descriptor, nbytes = attachment
            packed = wire.pack({"type": "blob", "digest": digest, "nbytes": nbytes})
            given = descriptor if descriptor >= 0 else None
            self._write(lambda: self._worker.pipe.send(packed, descriptor=given))
        if reply is not None:
            self._taken(self._channel.send_data(wire.pack(reply), ()))

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
                self._tell(error, "")
                self.end("its worker could not open the device")
            return
        if frame.start in (SENT, READ_BACK):
            self._downloads.settle()
            if frame.start == READ_BACK:
                self._lent.given_back(self._downloads.answered)
            return
        self._taken(self._downloads.pass_on(header, frame))

    def _taken(self, taken: bool) -> None:
        if not taken:
            self.give_up("its client does not take its answers, or is gone")

    def _answered(self, sequence: int) -> None:
        self._standstill.moved(time.monotonic())
        self._uploads.answered(sequence)

    def _pong(self, header: wire.Header) -> wire.Header:
        self._downloads.settle()
        pong: wire.Header = {
            "type": "pong",
            "sequence": wire.integer(header.get("sequence"), "sequence"),
            "answered": self._downloads.answered,
        }
        running = self._worker.board.running()
        self._lent.note()
        if running is not None:
            pong["busy_seconds"] = round(self.busy_seconds(), 3)
            pong["command"] = self._last.name(*running[:2])
        return pong

    def _check_standstill(self, now: float) -> None:
        has_none = self._uploads.worker_has_none() and not self._line.halfway
        has_none = has_none and not self._lent.refused
        if seconds := self._standstill.check(now, has_none=has_none):
            self._lose(f"the worker of this session stood still for {seconds:.0f} s and was ended")

    def _lose(self, what: str) -> None:
        """The worker is gone, or of no use: collect what it leaves behind, and tell."""
        if self.ended:
            return
        self._lent.note()
        self._tell(*end_and_report(what, self._worker, self._last))
        self.end(what)

    def _tell(self, error: TapmlError, command: str) -> None:
        """Send the client its session's last message."""
        self.loss = failure = failure_to_wire(error, command) | self._worker.last_words()
        self._channel.send_control(wire.pack({"type": "event", "error": failure}))
