"""The ZeroMQ binding of a supervisor: control, data, and one thread on which nothing waits.

Control is a ROUTER of libzmq, and so is data if encrypted. A plain data connection is accepted on a
socket of ours and given to its session's worker.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import zmq

from tapml_rpc import wire
from tapml_rpc.failures import error_reply, failure_to_wire, show_fault
from tapml_rpc.flow import Forwarder
from tapml_rpc.security.curve import Authenticator, ServerCurve
from tapml_rpc.security.standing import LOOPBACK_IDENTITY
from tapml_rpc.supervisor.clients import Client, Clients
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.plain_data import DataListener
from tapml_rpc.supervisor.worker_process import Start
from tapml_rpc.zeromq.router import (
    GONE,
    RouterBounds,
    RouterEnd,
    RouterService,
    Socket,
    unpack_control,
)
from tapml_targets.errors import ProtocolError, SetupError

_POLL_SECONDS: Final = 0.05
_CHECK_SECONDS: Final = 0.1
_FOR_TRACKERS: Final = ("register", "request", "list")


class _Client(Client):
    """A client on the two sockets; a plain data connection is its worker's."""

    def __init__(self, control: RouterEnd) -> None:
        self.control = control
        self.data: RouterEnd | socket.socket | None = None

    def send_control(self, packed: bytes) -> bool:
        """Send a packed header on the control connection."""
        return self.control.send(packed)

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """Send a packed header and its chunk on the data connection."""
        return isinstance(self.data, RouterEnd) and self.data.send(packed, parts, sent)

    def settle(self) -> None:
        """Report payloads that have left."""
        if isinstance(self.data, RouterEnd):
            self.data.settle()


class ZmqFront:
    """Serves ZeroMQ clients on ``tcp://host:port``; port 0 takes a free one.

    Without `curve` keys it serves loopback only. `address` and `data_address` are what clients are
    given. Raises SetupError if an address cannot be used.
    """

    def __init__(
        self, hub: Hub, control_address: str, data_address: str, *, curve: ServerCurve | None = None
    ) -> None:
        self._hub = hub
        self._curve = curve
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.setsockopt(zmq.IPV6, int("[" in control_address))
        self._authenticator = None if curve is None else Authenticator(self._context, curve.clients)
        self._forwarder = Forwarder()
        self._clients: Clients[_Client] = Clients(
            hub, self._forwarder, lambda client, why: client.settle()
        )
        router = partial(
            RouterService,
            self._forwarder,
            self._context,
            # Room for all answers that a client may wait for.
            bounds=RouterBounds(unsent=4 * hub.bounds.unanswered),
            curve=curve,
        )
        self._data: DataListener | RouterService
        where = data_address
        try:
            if curve is None:
                self._data = DataListener(self._forwarder, data_address, self._claim_plain)
            else:
                self._data = router(
                    data_address,
                    take=self._take_data,
                    refuse=self._refuse_data,
                    gone=partial(self._data_gone, f"its data connection {GONE}"),
                )
            where = control_address
            self._control = router(
                control_address,
                take=self._take_control,
                refuse=self._refuse,
                gone=partial(self._end_of, f"its control connection {GONE}"),
            )
        except (OSError, zmq.ZMQError) as error:
            self._end_context(linger=0)
            why = zmq.strerror(error.errno) if error.errno else str(error)
            if error.errno in (zmq.EADDRINUSE, errno.EADDRINUSE):
                why += "; another server listens there: end it, or give another port (0 takes a "
                why += "free one)"
            raise SetupError(f"cannot listen on {where}: {why}") from None
        self.address = self._control.address
        self.data_address = self._data.address

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Serve until `should_stop` returns true."""
        next_check, more = 0.0, False
        try:
            while not should_stop():
                self._forwarder.step(0 if more else _POLL_SECONDS)
                now = time.monotonic()
                if now >= next_check:
                    next_check = now + _CHECK_SECONDS
                    self._check(now)
                more = self._control.serve()
                more = self._data.serve() or more
        finally:
            self.close()

    def close(self) -> None:
        """End every session and both sockets."""
        for client in self._clients:
            self._clients.drop(client, "the server ends", kill=True)
        self._data.close()
        self._control.close()
        self._end_context(linger=200)

    def _end_context(self, linger: int) -> None:
        self._forwarder.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.destroy(linger=linger)

    def _take_control(self, end: RouterEnd, who: str, packed: bytes, chunk: memoryview) -> None:
        if chunk:
            raise ProtocolError("a control message is one header")
        header = unpack_control(packed)
        if header.get("type") == "hello":
            self._hello(end, who, header)
            return
        if header.get("type") in _FOR_TRACKERS:
            raise SetupError(
                "this is a device's own server, not a tracker: give its address to --device"
            )
        reply = self._clients.control(self._clients.find(header, who), header)
        if reply is not None:
            end.send(reply)

    def _refuse(self, end: RouterEnd, error: Exception) -> None:
        """Report to a peer what was wrong with a control message."""
        show_fault(error)
        with suppress(ProtocolError):
            end.send(wire.pack({"type": "refused", "error": failure_to_wire(error)}))

    def _take_data(self, end: RouterEnd, who: str, packed: bytes, chunk: memoryview) -> None:
        header = wire.unpack(packed)
        try:
            wire.check_chunk(len(chunk))
            client = self._clients.claim(header, who, end)
            # Room in the ring comes before the messages that need it.
            client.settle()
            client.relay.accept(header, packed, chunk)
            self._clients.settle(client)
        except Exception as error:
            self._refuse_data(end, error, header)

    def _refuse_data(
        self, end: RouterEnd, error: Exception, header: wire.Header | None = None
    ) -> None:
        """Report to a peer what was wrong with a data message."""
        show_fault(error)
        if reply := error_reply(error, header):
            end.send(reply)

    def _claim_plain(self, header: wire.Header, connection: socket.socket, received: bytes) -> None:
        """Give a plain data connection to its session's worker."""
        client = self._clients.claim(header, LOOPBACK_IDENTITY, connection)
        client.relay.connect(connection, received)
        self._clients.settle(client)

    def _data_gone(self, why: str, end: RouterEnd) -> None:
        for client in self._clients:
            if client.data == end:
                self._clients.drop(client, why)

    def _end_of(self, why: str, end: RouterEnd) -> None:
        """End the session of a control connection."""
        for client in self._clients:
            if client.control == end:
                client.relay.end(why)
                self._clients.settle(client)

    def _hello(
        self, end: RouterEnd, who: str, header: wire.Header, waited: Start | None = None
    ) -> None:
        try:
            # A connection has one session: no client can fill the server from a single one.
            self._end_of("its client began another on the same connection", end)
            self._make_room()
            again = partial(self._hello, end, who, header)
            self._clients.greet(header, _Client(end), who, self.data_address, again, waited)
        except Exception as error:
            self._refuse(end, error)

    def _make_room(self) -> None:
        held: wire.Header = {}
        self._hub.count(held)
        if held["sessions"] < self._hub.bounds.sessions:
            return
        for client in self._clients:
            if not client.send_control(wire.pack({"type": "probe"})):
                client.relay.end("its connection is gone")
                self._clients.settle(client)

    def _check(self, now: float) -> None:
        self._data.check(now)
        self._control.check(now)
        for client in self._clients:
            client.settle()
        self._clients.check(now)
