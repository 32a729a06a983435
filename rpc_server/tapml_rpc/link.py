"""The client's connection: batches out, answers in, credits both ways.

The caller's thread owns the data socket, so that an answer reaches it without another thread in
between; :mod:`tapml_rpc.watch` has the control socket.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final

import zmq

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.loss import Held, held, token_of, told_with
from tapml_rpc.pending import PendingResults
from tapml_rpc.security.curve import ClientCurve, apply_client
from tapml_rpc.security.handshake import MONITORED, HandshakeWatch
from tapml_rpc.tracker.route import connect_socket, data_address_beside, is_relayed
from tapml_rpc.transport import Ticket
from tapml_rpc.watch import Busy, ExitReport, Socket, Watch
from tapml_targets.description_format import from_plain
from tapml_targets.errors import (
    DeviceLostError,
    InputError,
    ProtocolError,
    SetupError,
    TapmlError,
)

DOWNLOAD_WINDOW: Final = 16 << 20
_CREDIT_BYTES: Final = 4 << 20
_POLL_MILLISECONDS: Final = 50
_ZERO_COPY_BYTES: Final = 64 << 10
_LAST_COMMANDS: Final = 5
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
        self._lease_token = token_of(lease)
        self._curve = curve
        self.closed = False
        self._owner = os.getpid()
        self._exit_report = exit_report
        self._busy = False
        self._tickets: dict[int, Ticket] = {}
        self._sequence = 0
        self._upload_bytes = 0
        self._uncredited = 0
        self._last_commands: deque[object] = deque(maxlen=_LAST_COMMANDS)
        self._context: zmq.Context[Socket] = zmq.Context()
        try:
            control, control_monitor = self._connect(address)
            welcome = self._hello(control, control_monitor, timeout, kernel_deadline)
            self.version = wire.integer(welcome.get("version"), "version")
            self.features = frozenset(wire.array(welcome.get("features"), "features", 256))
            self.device = from_plain(welcome.get("device"))
            self.bounds = Bounds.from_wire(welcome.get("bounds"))
            self.epoch = wire.octets(welcome.get("epoch"), "epoch", 64)
            self.token = wire.octets(welcome.get("session"), "session", 64)
            self._data, data_monitor = self._connect(
                _same_host(wire.text(welcome.get("data_address"), "data address"), address)
            )
            self._data.rcvtimeo = _POLL_MILLISECONDS
            self._watch = Watch(
                control,
                (control_monitor, data_monitor),
                self.token,
                exit_report=exit_report,
                busy=busy,
                describe=self._describe,
            )
        except BaseException:
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
        self._busy = True
        if chunk_bytes:
            self._data.send(packed, zmq.SNDMORE)
            self._data.send(chunk, 0, chunk_bytes < _ZERO_COPY_BYTES)
        else:
            self._data.send(packed)
        self._busy = False

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
        with suppress(zmq.Again):
            while self._tickets:
                self._take(zmq.NOBLOCK)
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
        if self._watch.lost is None and not self._busy:
            with suppress(zmq.ZMQError):
                goodbye = {"type": "goodbye", "session": self.token, "epoch": self.epoch}
                self._data.send(wire.pack(goodbye), zmq.NOBLOCK)
        if self._watch.close():
            self._context.destroy(linger=100)

    def _check(self) -> None:
        if self.closed:
            raise InputError("this session is closed; open a new one")
        if os.getpid() != self._owner:
            raise InputError("this session belongs to the process that forked this one")
        if self._busy:
            raise DeviceLostError(
                "the connection was interrupted in the middle of a message; open a new session"
            )
        if self._watch.lost is not None:
            raise self._watch.lost.with_traceback(None)

    def _receive(self) -> None:
        """Wait for one message, or for the news that none will come."""
        try:
            self._take(0)
        except zmq.Again:
            if self._watch.lost is not None:
                raise self._watch.lost.with_traceback(None) from None

    def _take(self, flags: int) -> None:
        self._check_usable()
        packed = self._data.recv(flags)
        self._busy = True
        chunk = (
            self._data.recv(copy=False).buffer
            if self._data.getsockopt(zmq.RCVMORE)
            else memoryview(b"")
        )
        header = wire.unpack(packed)
        kind = header.get("type")
        ticket = self._tickets.get(header.get("sequence", -1))
        if kind == "data" and ticket is not None:
            self._place(ticket, header, chunk)
        elif kind in _ANSWERS and ticket is not None:
            ticket.answer(header, chunk)
            self._forget(ticket)
        elif kind == "error":
            self._busy = False
            self._refused(ticket, header)
        self._busy = False

    def _check_usable(self) -> None:
        if self._busy or self.closed:
            self._check()

    def _place(self, ticket: Ticket, header: wire.Header, chunk: memoryview) -> None:
        pending = ticket.find(header.get("index"))
        if pending is None:
            raise ProtocolError("the server sent bytes that no read asked for")
        pending.place(wire.integer(header.get("offset"), "offset"), chunk)
        self._uncredited += len(chunk)
        if self._uncredited >= _CREDIT_BYTES:
            credit = {
                "type": "credit",
                "session": self.token,
                "epoch": self.epoch,
                "bytes": self._uncredited,
            }
            self._uncredited = 0
            self._data.send(wire.pack(credit))

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

    def _connect(self, address: str) -> tuple[Socket, Socket]:
        socket: Socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_CHUNK_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 3000)
        socket.setsockopt(zmq.IPV6, int("[" in address))
        apply_client(socket, self._curve)
        monitor: Socket = socket.get_monitor_socket(MONITORED)
        try:
            connect_socket(socket, address)
        except zmq.ZMQError as error:
            raise InputError(
                f"expected an address such as tcp://127.0.0.1:9000, got {address!r}: {error}"
            ) from None
        return socket, monitor

    def _hello(
        self, control: Socket, monitor: Socket, timeout: float, kernel_deadline: float | None
    ) -> wire.Header:
        hello: wire.Header = {
            "type": "hello",
            "versions": [wire.VERSION],
            "features": [],
            "download_window": DOWNLOAD_WINDOW,
        }
        if kernel_deadline is not None:
            hello["kernel_deadline"] = kernel_deadline
        if self._lease_token:
            hello["lease"] = self._lease_token
        control.send(wire.pack(hello))
        deadline = time.monotonic() + timeout
        handshakes = HandshakeWatch(monitor, self.address, self._curve)
        while not control.poll(_POLL_MILLISECONDS):
            handshakes.check()
            ended = self._exit_report(0) if self._exit_report else None
            if ended is not None:
                raise DeviceLostError(f"the server ended before it answered: {ended}")
            if time.monotonic() > deadline:
                raise handshakes.hint or SetupError(
                    f"no tapml server answers at {self.address} within {timeout:g} s; "
                    "start one there with `tapml rpc serve`"
                )
        reply = wire.unpack(control.recv())
        if reply.get("type") == "refused":
            raise failure_from_wire(reply.get("error"))
        if reply.get("type") != "welcome":
            raise ProtocolError(f"{self.address} is no tapml server: it sent no welcome")
        return reply

    def _describe(self, error: TapmlError) -> TapmlError:
        return told_with(error, self._lease, list(self._last_commands) if self._tickets else ())


def _same_host(data_address: str, control_address: str) -> str:
    """The data socket's address as this side reaches it: the host we connected to, its port."""
    if is_relayed(control_address):
        return data_address_beside(control_address)
    host = control_address.rpartition(":")[0]
    return f"{host}:{data_address.rpartition(':')[2]}"
