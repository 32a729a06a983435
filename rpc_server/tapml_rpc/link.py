"""The client's connection: batches out, answers in, credits both ways.

The caller's thread owns the data connection, so that an answer reaches it without another thread in
between; :mod:`tapml_rpc.watch` has the control socket.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Final, NoReturn
from weakref import finalize

import zmq

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.data_connection import DataConnection, open_encrypted, open_plain
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.loss import Held, held, token_of, told_with
from tapml_rpc.pending import Pending, PendingResults, fresh_memory
from tapml_rpc.security.curve import ClientCurve
from tapml_rpc.security.handshake import HandshakeWatch
from tapml_rpc.tracker.route import data_address_beside, is_relayed
from tapml_rpc.transport import Ticket
from tapml_rpc.watch import Busy, ExitReport, Socket, Watch
from tapml_rpc.welcome import connect_dealer, say_hello
from tapml_rpc.zmtp.incoming import EndedError
from tapml_targets.description_format import from_plain
from tapml_targets.errors import (
    DeviceLostError,
    InputError,
    ProtocolError,
    SetupError,
    TapmlError,
)

_CREDIT_BYTES: Final = 4 << 20
_POLL_MILLISECONDS: Final = 50
_LAST_COMMANDS: Final = 5
# How long the control connection may take to say what it was that ended the data connection.
_LAST_WORDS_SECONDS: Final = 5.0
_ANSWERS: Final = ("done", "blob-done")


class Link:
    """A session's two connections: the :class:`Transport` to a server.

    Parameters
    ----------
    address
        ``tcp://host:port`` of the control socket.
    timeout
        Seconds to wait for the server's welcome.
    kernel_deadline
        Longest time of one command in seconds; None leaves it to the server.
    exit_report
        For a local server: text about how its process ended, or None while it runs.
    busy
        For a local server: whether its process runs or waits for a processor or a disk.
    curve
        This client's keys and the server's public one; None for a server without.
    lease
        A tracker's lease on the device, or its token.

    Raises
    ------
    SetupError
        If nothing answers, the server takes no more sessions, or the keys do not fit.
    ProtocolError
        If the server refuses, e.g. because of its version.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float,
        kernel_deadline: float | None = None,
        exit_report: ExitReport | None = None,
        busy: Busy | None = None,
        curve: ClientCurve | None = None,
        lease: Held | str = "",
    ) -> None:
        self.address = address
        self._lease = held(lease)
        self.closed = False
        self._owner = os.getpid()
        self._exit_report = exit_report
        self._busy = False
        self._tickets: dict[int, Ticket] = {}
        self._sequence = 0
        self._upload_bytes = 0
        self._uncredited = 0
        self._last_commands: deque[object] = deque(maxlen=_LAST_COMMANDS)
        # The header whose chunk is arriving, and whether that goes to a read at once.
        self._arriving: wire.Header | None = None
        self._placed = False
        self._context: zmq.Context[Socket] = zmq.Context()
        sockets: list[Socket] = []
        finalize(self, _end, self._context, sockets).atexit = False
        try:
            control, *monitors = connect_dealer(self._context, address, curve)
            sockets += [control, *monitors]
            welcome = say_hello(
                control,
                HandshakeWatch(monitors[0], address, curve),
                address,
                timeout=timeout,
                kernel_deadline=kernel_deadline,
                lease=token_of(lease),
                exit_report=exit_report,
            )
            self.version = wire.integer(welcome.get("version"), "version")
            self.features = frozenset(wire.array(welcome.get("features"), "features", 256))
            self.device = from_plain(welcome.get("device"))
            self.bounds = Bounds.from_wire(welcome.get("bounds"))
            self.epoch = wire.octets(welcome.get("epoch"), "epoch", 64)
            self.token = wire.octets(welcome.get("session"), "session", 64)
            data_address = _same_host(
                wire.text(welcome.get("data_address"), "data address"), address
            )
            self._data: DataConnection
            if curve is None:
                self._data = open_plain(data_address, timeout, self._place)
                self._say_whose_it_is()
            else:
                opened = open_encrypted(self._context, data_address, curve, timeout)
                self._data, dealer, monitor = opened
                monitors.append(monitor)
                sockets += [dealer, monitor]
            self._watch = Watch(
                control,
                monitors,
                self.token,
                exit_report=exit_report,
                busy=busy,
                describe=self._describe,
                beat=self._data.beat,
            )
        except BaseException:
            if hasattr(self, "_data"):
                self._data.abort()
            self._context.destroy(linger=0)
            raise

    def send(
        self,
        commands: list[list[Any]],
        chunk: memoryview | bytes,
        pending: PendingResults | None = None,
        stream: int = 0,
    ) -> Ticket:
        """Send a batch; waits only while the server's credit is used up.

        Parameters
        ----------
        chunk
            Payload of all writes; where it is large it must not change until it is answered.
        pending
            The results that `commands` give, by index of the command.
        """
        self._wait_for_room(len(chunk))
        self._sequence += 1
        ticket = Ticket(self._sequence, len(chunk), pending or {})
        header: wire.Header = {
            "type": "batch",
            "session": self.token,
            "epoch": self.epoch,
            "sequence": ticket.sequence,
            "commands": commands,
        }
        if stream:
            header["stream"] = stream
        self._post(ticket, header, chunk)
        self._last_commands.extend(commands[-_LAST_COMMANDS:])
        return ticket

    def request(self, fields: dict[str, Any], chunk: memoryview | bytes = b"") -> Ticket:
        """Send a message that is no batch; see :class:`tapml_rpc.transport.BlobTransport`."""
        self._wait_for_room(len(chunk))
        self._sequence += 1
        ticket = Ticket(self._sequence, len(chunk), {})
        header: wire.Header = {
            **fields,
            "session": self.token,
            "epoch": self.epoch,
            "sequence": ticket.sequence,
        }
        self._post(ticket, header, chunk)
        return ticket

    def _wait_for_room(self, chunk_bytes: int) -> None:
        self._check()
        bounds = self.bounds
        while (
            self._upload_bytes + chunk_bytes > bounds.upload_window
            or len(self._tickets) >= bounds.unanswered
        ):
            self._receive()

    def _post(self, ticket: Ticket, header: wire.Header, chunk: memoryview | bytes) -> None:
        packed = wire.pack(header)
        chunk_bytes = ticket.chunk_bytes
        self._tickets[ticket.sequence] = ticket
        self._upload_bytes += chunk_bytes
        self._send(packed, chunk)

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
            # A forked child has neither the sockets' threads nor the right to say goodbye.
            return
        if self._watch.lost is None and not self._interrupted:
            goodbye = {"type": "goodbye", "session": self.token, "epoch": self.epoch}
            self._data.close(wire.pack(goodbye))
        else:
            self._data.abort()
        if self._watch.close():
            self._context.destroy(linger=100)

    @property
    def _interrupted(self) -> bool:
        return self._busy or self._data.torn

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

    def _send(self, packed: bytes, chunk: memoryview | bytes = b"") -> None:
        try:
            self._data.send(packed, chunk, self._check_watch)
        except EndedError:
            self._lose()

    def _receive(self) -> None:
        """Wait for one message, or for the news that none will come."""
        if not self._take(_POLL_MILLISECONDS):
            self._check_watch()

    def _take(self, wait_milliseconds: int) -> bool:
        """Take a message; False where none has come in time."""
        if self._interrupted or self.closed:
            self._check()
        try:
            message = self._data.receive(wait_milliseconds)
        except EndedError:
            self._lose()
        if message is None:
            return False
        self._busy = True
        packed, chunk = message
        header, self._arriving = self._arriving, None
        placed, self._placed = self._placed, False
        if header is None:
            header = wire.unpack(packed)
        kind = header.get("type")
        ticket = self._tickets.get(header.get("sequence", -1))
        if kind == "data" and ticket is not None:
            pending = self._read(ticket, header)
            if placed:
                pending.arrived(len(chunk))
            else:
                pending.place(wire.integer(header.get("offset"), "offset"), chunk)
            self._give_credit(len(chunk))
        elif kind in _ANSWERS and ticket is not None:
            ticket.answer(header, chunk)
            self._forget(ticket)
        elif kind == "error":
            self._busy = False
            self._refused(ticket, header)
        self._busy = False
        return True

    def _place(self, packed: bytes, nbytes: int) -> memoryview:
        """Where the chunk that follows a header goes: to its read, or to memory of its own."""
        header = self._arriving = wire.unpack(packed)
        ticket = self._tickets.get(header.get("sequence", -1))
        if header.get("type") != "data" or ticket is None:
            return fresh_memory(nbytes)
        offset = wire.integer(header.get("offset"), "offset")
        memory = self._read(ticket, header).room(offset, nbytes)
        self._placed = True
        return memory

    def _read(self, ticket: Ticket, header: wire.Header) -> Pending:
        pending = ticket.find(header.get("index"))
        if pending is None:
            raise ProtocolError("the server sent bytes that no read asked for")
        return pending

    def _say_whose_it_is(self) -> None:
        """A full server lets go of data connections that are no session's."""
        try:
            self._data.send(self._credit(0))
        except EndedError as error:
            raise SetupError(f"the server's data connection does not last: {error}") from None

    def _give_credit(self, nbytes: int) -> None:
        self._uncredited += nbytes
        if self._uncredited >= _CREDIT_BYTES:
            credit, self._uncredited = self._uncredited, 0
            self._send(self._credit(credit))

    def _credit(self, nbytes: int) -> bytes:
        return wire.pack(
            {"type": "credit", "session": self.token, "epoch": self.epoch, "bytes": nbytes}
        )

    def _lose(self) -> NoReturn:
        self._watch.look_at_drop(_LAST_WORDS_SECONDS)
        if self._watch.lost is None:
            lost = DeviceLostError("the connection to the server dropped")
            self._watch.lost = self._describe(lost)
        raise self._watch.lost.with_traceback(None) from None

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

    def _describe(self, error: TapmlError) -> TapmlError:
        return told_with(error, self._lease, list(self._last_commands) if self._tickets else ())


def _end(context: zmq.Context[Socket], sockets: list[Socket]) -> None:
    """End what a session leaves that was lost and not closed.

    The collector ends things in any order, and a context that ends first waits for its sockets.
    """
    for each in sockets:
        each.close(linger=0)
    context.destroy(linger=0)


def _same_host(data_address: str, control_address: str) -> str:
    """The data socket's address as this side reaches it: the host we connected to, its port."""
    if is_relayed(control_address):
        return data_address_beside(control_address)
    host = control_address.rpartition(":")[0]
    return f"{host}:{data_address.rpartition(':')[2]}"
