"""A session's two WebSocket connections: batches out, answers in, credits both ways.

What :class:`tapml_rpc.link.Link` is for ZeroMQ. The caller's thread owns the data connection, so
that an answer reaches it without another thread in between; :mod:`tapml_rpc.websocket.watch` has
the control connection. Needs neither numpy nor pyzmq.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Final, NoReturn

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.loss import Held, told_with
from tapml_rpc.pending import PendingResults
from tapml_rpc.transport import Ticket
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.incoming import EndedError
from tapml_rpc.websocket.stream import Stream
from tapml_rpc.websocket.watch import SILENCE_SECONDS, Watch
from tapml_targets.description_format import from_plain
from tapml_targets.errors import DeviceLostError, InputError, ProtocolError, TapmlError

_CREDIT_BYTES: Final = 4 << 20
_POLL_MILLISECONDS: Final = 50
_LAST_COMMANDS: Final = 5
# The other connection ends within this time, whatever happens: its watch sees to that.
_LAST_WORDS_SECONDS: Final = SILENCE_SECONDS + 1


class WebSocketTransport:
    """The :class:`tapml_rpc.transport.Transport` over two connections that are open.

    Parameters
    ----------
    address
        Of the server, for people.
    welcome
        What the server said.
    control, data
        The connections; this object's from now on.
    lease
        The lease it is used under, where it is known.
    """

    def __init__(
        self,
        address: str,
        welcome: wire.Header,
        control: Stream,
        data: Stream,
        lease: Held | None = None,
    ) -> None:
        self.address = address
        self.closed = False
        self.version = wire.integer(welcome.get("version"), "version")
        self.features = frozenset(wire.array(welcome.get("features"), "features", 256))
        self.device = from_plain(welcome.get("device"))
        self.bounds = Bounds.from_wire(welcome.get("bounds"))
        self.epoch = wire.octets(welcome.get("epoch"), "epoch", 64)
        self.token = wire.octets(welcome.get("session"), "session", 64)
        self._owner = os.getpid()
        self._data = data
        self._lease = lease
        self._busy = False
        self._tickets: dict[int, Ticket] = {}
        self._sequence = 0
        self._upload_bytes = 0
        self._uncredited = 0
        self._last_commands: deque[object] = deque(maxlen=_LAST_COMMANDS)
        self._watch = Watch(control, self.token, self._describe)
        # Says whose connection it is: a server does not wait long for a first message.
        self._give_credit()

    def send(
        self,
        commands: list[list[Any]],
        chunk: memoryview | bytes,
        pending: PendingResults | None = None,
        stream: int = 0,
    ) -> Ticket:
        """Send a batch; waits while the server's credit is used up, or it takes no bytes.

        Parameters
        ----------
        chunk
            Payload of all writes; it may change as soon as this returns.
        pending
            The results that `commands` give, by index of the command.
        """
        header: wire.Header = {"type": "batch", "commands": commands}
        if stream:
            header["stream"] = stream
        ticket = self._post(header, chunk, pending or {})
        self._last_commands.extend(commands[-_LAST_COMMANDS:])
        return ticket

    def request(self, fields: dict[str, Any], chunk: memoryview | bytes = b"") -> Ticket:
        """Send a message that is no batch; see :class:`tapml_rpc.transport.BlobTransport`."""
        return self._post(fields, chunk, {})

    def wait(self, ticket: Ticket) -> None:
        """Wait for a batch's answer.

        Raises
        ------
        DeviceLostError
            If the server is gone, or a subclass that says why.
        """
        while not ticket.done:
            self._receive()

    def drain(self) -> bool:
        """Take the answers that are there; True when no batch is on its way."""
        while self._tickets and self._take(0):
            pass
        return not self._tickets

    @property
    def pong(self) -> wire.Header:
        """The server's last answer to a ping: how it is, and what all its sessions hold."""
        return self._watch.pong

    def cancel(self) -> None:
        """Ask the server not to run the batches sent so far; a running kernel is not stopped."""
        self._check()
        self._watch.post({"type": "cancel", "sequence": self._sequence})

    def close(self) -> None:
        """Say goodbye and close both connections. Never raises and never waits long."""
        if self.closed:
            return
        self.closed = True
        if os.getpid() != self._owner:
            # A forked child has neither the watch's thread nor the right to say goodbye.
            return
        if self._watch.lost is None and not self._interrupted:
            self._data.close()
        else:
            self._data.abort()
        # The control connection says goodbye.
        self._watch.close()

    @property
    def _interrupted(self) -> bool:
        return self._busy or self._data.torn

    def _post(
        self, fields: wire.Header, chunk: memoryview | bytes, pending: PendingResults
    ) -> Ticket:
        self._check()
        chunk_bytes = len(chunk)
        bounds = self.bounds
        while (
            self._upload_bytes + chunk_bytes > bounds.upload_window
            or len(self._tickets) >= bounds.unanswered
        ):
            self._receive()
        self._sequence += 1
        ticket = Ticket(self._sequence, chunk_bytes, pending)
        own = {"session": self.token, "epoch": self.epoch, "sequence": ticket.sequence}
        head = frames.head(wire.pack({**fields, **own}), chunk_bytes)
        self._tickets[ticket.sequence] = ticket
        self._upload_bytes += chunk_bytes
        self._send(head, chunk)
        return ticket

    def _check(self) -> None:
        if self.closed:
            raise InputError("this session is closed; open a new one")
        if os.getpid() != self._owner:
            raise InputError("this session belongs to the process that forked this one")
        if self._watch.lost is not None:
            raise self._watch.lost.with_traceback(None)
        if self._interrupted:
            raise DeviceLostError(
                "the connection was interrupted in the middle of a message; open a new session"
            )

    def _check_watch(self) -> None:
        if self._watch.lost is not None:
            raise self._watch.lost.with_traceback(None)

    def _send(self, head: bytes, chunk: memoryview | bytes = b"") -> None:
        try:
            self._data.send(head, chunk, self._check_watch)
        except EndedError as error:
            self._lose(error)

    def _receive(self) -> None:
        """Wait for one message, or for the news that none will come."""
        if not self._take(_POLL_MILLISECONDS):
            self._check_watch()

    def _take(self, wait_milliseconds: int) -> bool:
        if self._interrupted or self.closed:
            self._check()
        try:
            message = self._data.receive(wait_milliseconds)
        except EndedError as error:
            self._lose(error)
        if message is None:
            return False
        self._busy = True
        packed, chunk = frames.split(message)
        header = wire.unpack(packed)
        kind = header.get("type")
        ticket = self._tickets.get(header.get("sequence", -1))
        if kind == "data" and ticket is not None:
            self._place(ticket, header, chunk)
        elif kind in ("done", "blob-done") and ticket is not None:
            # The message's memory is used again, and results may be read from it later.
            ticket.answer(header, memoryview(bytes(chunk)))
            self._forget(ticket)
        elif kind == "error":
            self._busy = False
            self._refused(ticket, header)
        self._busy = False
        return True

    def _place(self, ticket: Ticket, header: wire.Header, chunk: memoryview) -> None:
        pending = ticket.find(header.get("index"))
        if pending is None:
            raise ProtocolError("the server sent bytes that no read asked for")
        pending.place(wire.integer(header.get("offset"), "offset"), chunk)
        self._uncredited += len(chunk)
        if self._uncredited >= _CREDIT_BYTES:
            self._give_credit()

    def _give_credit(self) -> None:
        credit = {
            "type": "credit",
            "session": self.token,
            "epoch": self.epoch,
            "bytes": self._uncredited,
        }
        self._uncredited = 0
        self._send(frames.head(wire.pack(credit), 0))

    def _forget(self, ticket: Ticket) -> None:
        del self._tickets[ticket.sequence]
        self._upload_bytes -= ticket.chunk_bytes

    def _refused(self, ticket: Ticket | None, header: wire.Header) -> None:
        error = failure_from_wire(header.get("error"))
        if isinstance(error, DeviceLostError):
            if self._watch.lost is None:
                self._watch.lost = self._describe(error)
            raise self._watch.lost
        if ticket is None:
            raise error
        ticket.finish(header)
        self._forget(ticket)

    def _lose(self, ended: EndedError) -> NoReturn:
        # The server's last words come over the other connection.
        lost = self._watch.wait_for_loss(_LAST_WORDS_SECONDS)
        if lost is None:
            lost = self._describe(DeviceLostError(f"the server is gone: {ended}"))
            self._watch.lost = lost
        raise lost.with_traceback(None) from None

    def _describe(self, error: TapmlError) -> TapmlError:
        return told_with(error, self._lease, list(self._last_commands) if self._tickets else ())
