"""A worker that reads its client's connection itself: the plain way, and nothing else.

It takes short batches and credits of its session, which are nearly all that a client sends that
waits for its answers, and long writes where the device's memory can be received into. Whatever else
comes, another long payload, a blob, goodbye, nonsense, the end, it leaves where it is and gives the
reading back to the supervisor, whose business all that is.
"""

from __future__ import annotations

import select
import socket

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.interpreter import ClientGoneError
from tapml_rpc.supervisor.arriving_chunk import ArrivingChunk, is_one_write
from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.pipe import NOWHERE, Frame, Pipe
from tapml_rpc.supervisor.shared_reading import (
    MOST_CHUNK_BYTES,
    MOST_HEADER_BYTES,
    SharedReading,
    Taken,
)
from tapml_rpc.zmtp import framing
from tapml_targets.errors import ProtocolError


class OwnReading:
    """The worker's side.

    Parameters
    ----------
    connection
        The client's, which does not wait.
    shared
        The worker's end; this object's from now on.
    session
        The header that messages of this session have: its token and epoch.
    bounds
        The session's.
    pipe, board
        To the supervisor: what comes there is waited for as well.

    Attributes
    ----------
    wants_rest
        Whether a long chunk is next, and the device may have something to end before.
    """

    def __init__(
        self,
        connection: socket.socket,
        shared: SharedReading,
        session: wire.Header,
        bounds: Bounds,
        pipe: Pipe,
        board: Board,
    ) -> None:
        self._lent = 0
        self._socket = connection
        self._shared = shared
        self._token, self._epoch = session["session"], session["epoch"]
        self._bounds = bounds
        self._pipe = pipe
        self._board = board
        self._poll = select.epoll()
        self._poll.register(connection, select.EPOLLIN)
        self._poll.register(pipe, select.EPOLLIN)
        self._received = False
        self._rested = self.wants_rest = False

    def here(self) -> bool:
        """Whether this process reads, as far as it knows."""
        return self._lent > 0

    def begin(self, lent: int) -> None:
        """The supervisor has lent the reading, as it says for the so manieth time."""
        self._lent = lent

    def wait(self) -> bool:
        """Wait for either to say something; whether the supervisor has."""
        ready = [descriptor for descriptor, _ in self._poll.poll()]
        said = self._pipe.fileno() in ready
        self._received = len(ready) > said
        return said

    def give_up(self) -> None:
        """Nobody knows any more where the next message begins: that is the supervisor's to say."""
        self._shared.enter(wait=True)
        self._shared.lent = self._lent = 0
        self._shared.leave()

    def next(
        self, last: int, *, busy: bool, rested: bool = False
    ) -> tuple[wire.Header, Frame] | None:
        """The next message; None while it has not all come, or it is not for this process.

        Parameters
        ----------
        last
            The batch that was taken last, in whichever way.
        busy
            Whether no batch can be taken now, or should be.
        rested
            Whether the device has nothing to end before it takes a long chunk.
        """
        shared = self._shared
        self._rested, self.wants_rest = rested, False
        received, self._received = self._received, False
        # Nobody else writes these while the reading is here; after that it is looked at below.
        if not received and shared.start == shared.end:
            return None
        shared.enter(wait=True)
        try:
            if shared.lent != self._lent:
                # Lent anew it may be: what has come for that time is in the pipe.
                self._lent = 0
                return None
            if received:
                self._receive()
            return self._take(last, busy)
        except (ProtocolError, OSError):
            # The supervisor finds out what it was, and says it.
            shared.lent = self._lent = 0
            return None
        finally:
            shared.leave()

    def _receive(self) -> None:
        """Receive what is there; raises OSError at the end."""
        shared = self._shared
        start, end = shared.start, shared.end
        shared.halfway = True
        if start:
            shared.ahead[: end - start] = bytes(shared.ahead[start:end])
            end -= start
            shared.start, shared.end = 0, end
        try:
            count = self._socket.recv_into(shared.ahead[end:])
        except (BlockingIOError, InterruptedError):
            shared.halfway = False
            return
        except OSError:
            shared.halfway = False
            raise
        shared.end = end + count
        shared.halfway = False
        if not count:
            raise ConnectionResetError("the end, or no room for more")

    def _take(self, last: int, busy: bool) -> tuple[wire.Header, Frame] | None:
        """The message that begins what was received; raises ProtocolError where it is no such."""
        shared, most = self._shared, len(self._shared.ahead)
        ahead, end = shared.ahead, shared.end
        while True:
            start = shared.start
            flags, nbytes, size = framing.parse_head(ahead, start, end)
            if not size:
                return None
            body = start + size
            chunk_start = chunk_end = body + nbytes
            length = 0
            if flags & framing.COMMAND:
                if nbytes > framing.MAX_COMMAND_BYTES:
                    raise ProtocolError("a command that is too long")
                if chunk_end > end:
                    return None
                if framing.parse_command(bytes(ahead[body:chunk_end]))[0] != b"PONG":
                    raise ProtocolError("a command that wants an answer")
                shared.start = chunk_end
                continue
            if nbytes > MOST_HEADER_BYTES:
                raise ProtocolError("a header that is too long")
            if chunk_end > end:
                return None
            if flags & framing.MORE:
                flags, length, size = framing.parse_head(ahead, chunk_end, end)
                if not size:
                    return None
                chunk_start = chunk_end + size
                chunk_end = chunk_start + length
                if flags & (framing.MORE | framing.COMMAND) or length > self._most_chunk_bytes():
                    raise ProtocolError("a chunk that is too long, or no chunk")
            long = length > MOST_CHUNK_BYTES
            if chunk_end > min(end, most) and not long:
                return None
            packed = bytes(ahead[body : body + nbytes])
            header = wire.unpack(packed)
            if not self._check(header, packed, length, last, busy):
                return None
            shared.count_message()
            if long:
                arriving = self._arriving(chunk_start, length)
                return header, Frame(packed, b"", NOWHERE, 0, arriving)
            chunk = bytes(ahead[chunk_start:chunk_end])
            shared.start = chunk_end
            return header, Frame(packed, chunk, NOWHERE, 0)

    def _most_chunk_bytes(self) -> int:
        return wire.MAX_CHUNK_BYTES if self._board.opens_memory else MOST_CHUNK_BYTES

    def _arriving(self, start: int, nbytes: int) -> ArrivingChunk:
        """A chunk that is received by whoever runs its batch, and what of it has come."""
        shared = self._shared
        end = min(start + nbytes, shared.end)
        ahead = bytes(shared.ahead[start:end])
        shared.start = end
        # Nothing follows what has not come.
        shared.halfway = len(ahead) < nbytes
        return ArrivingChunk(nbytes, ahead, self._receive_more, self._whole)

    def _receive_more(self, memory: memoryview) -> int:
        """Some of a long chunk, waited for; raises ClientGoneError where nothing more comes."""
        while True:
            try:
                count = self._socket.recv_into(memory)
            except (BlockingIOError, InterruptedError):
                self._wait_for_client()
                continue
            except OSError as error:
                raise ClientGoneError(str(error)) from None
            if not count:
                raise ClientGoneError("its connection has ended")
            return count

    def _wait_for_client(self) -> None:
        self._board.paused = True
        if self.wait() and not self._pipe.receive():
            raise ClientGoneError("its session has ended")
        self._board.paused = False

    def _whole(self) -> None:
        self._shared.halfway = False

    def _check(
        self, header: wire.Header, packed: bytes, nbytes: int, last: int, busy: bool
    ) -> bool:
        """See that it is the session's and right as far as a supervisor would look, and note it.

        False where the device has to rest first: nobody sees what follows a chunk that is taken,
        perhaps a goodbye or the end, before all of it has come.
        """
        if header.get("session") != self._token or header.get("epoch") != self._epoch:
            raise ProtocolError("not this session's")
        kind, bounds = header.get("type"), self._bounds
        if kind == "credit" and not nbytes:
            wire.integer(header.get("bytes"), "credit")
            return True
        sequence = wire.integer(header.get("sequence"), "sequence")
        wire.integer(header.get("stream", 0), "stream", bounds.streams - 1)
        commands = wire.array(header.get("commands"), "commands", bounds.commands)
        if (
            kind != "batch"
            or busy
            or sequence <= last
            or nbytes > bounds.upload_window
            or (nbytes > MOST_CHUNK_BYTES and not is_one_write(commands, nbytes))
            # What a program weighs the supervisor has to know.
            or any(isinstance(each, list) and each[:1] == ["program"] for each in commands)
        ):
            raise ProtocolError("for the supervisor")
        self.wants_rest = nbytes > MOST_CHUNK_BYTES and not self._rested
        if not self.wants_rest:
            self._shared.note(Taken(sequence, nbytes, packed))
        return not self.wants_rest
