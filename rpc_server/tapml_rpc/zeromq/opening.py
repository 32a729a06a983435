"""The client's way to a session over ZeroMQ: control socket, hello, data connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias
from weakref import finalize

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.link import Held, Link, held, token_of
from tapml_rpc.security.bind import split_address
from tapml_rpc.security.curve import ClientCurve, apply_client
from tapml_rpc.security.handshake import MONITORED, HandshakeWatch
from tapml_rpc.transport import Check, Unanswered
from tapml_rpc.tunnel import (
    connect_socket,
    data_address_beside,
    is_relayed,
    open_stream,
    without_secret,
)
from tapml_rpc.watch import POLL_MILLISECONDS, Describe, Watch
from tapml_rpc.welcome import Welcome, hello
from tapml_rpc.zmtp.incoming import Place
from tapml_rpc.zmtp.stream import Stream
from tapml_targets.errors import InputError, SetupError, UnreachableError

# With -1 libzmq would drop what has come before a connection's end and was not taken yet.
_NEVER_MILLISECONDS: Final = 24 * 3600 * 1000

Socket: TypeAlias = zmq.Socket[bytes]


def connect_dealer(
    context: zmq.Context[Socket],
    address: str,
    curve: ClientCurve | None,
    *,
    once: bool = False,
    beats: tuple[float, float] | None = None,
    most_bytes: int = wire.MAX_FRAME_BYTES,
) -> tuple[Socket, Socket]:
    """A DEALER that connects to an address, and its monitor.

    `once`: messages wait for the connection, and nothing reconnects after it. `beats` are the
    seconds between two heartbeats, and those after which a peer that answers none is gone.
    `most_bytes` is the longest frame it takes. Raises InputError if the address is malformed.
    """
    dealer: Socket = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.setsockopt(zmq.MAXMSGSIZE, most_bytes)
    dealer.setsockopt(zmq.HANDSHAKE_IVL, 3000)
    dealer.setsockopt(zmq.IPV6, int("[" in address))
    if once:
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.setsockopt(zmq.RECONNECT_IVL, _NEVER_MILLISECONDS)
    if beats is not None:
        dealer.setsockopt(zmq.HEARTBEAT_IVL, int(1000 * beats[0]))
        dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(1000 * beats[1]))
    apply_client(dealer, curve)
    monitor: Socket = dealer.get_monitor_socket(MONITORED)
    try:
        connect_socket(dealer, address)
    except zmq.ZMQError as error:
        raise InputError(
            f"expected an address such as tcp://127.0.0.1:9000, got {address!r}: {error}"
        ) from None
    return dealer, monitor


_ZERO_COPY_BYTES: Final = 64 << 10
_POLL_MILLISECONDS: Final = 50
_BOTH_OPEN: Final = "both its ports must be open to this client"


class DealerData:
    """A :class:`tapml_rpc.transport.DataConnection` on a DEALER, which its context closes."""

    memory_is_reused = False

    def __init__(self, dealer: Socket) -> None:
        self.torn = False
        self._socket = dealer

    def send(
        self, packed: bytes, chunk: bytes | memoryview = b"", check: Check | None = None
    ) -> None:
        """Send a message. A large chunk must not change until it is answered."""
        # A connection that libzmq has given up never takes anything again.
        while not self._socket.poll(_POLL_MILLISECONDS, zmq.POLLOUT):
            if check is not None:
                check()
        self.torn = True
        if chunk_bytes := len(chunk):
            self._socket.send(packed, zmq.SNDMORE)
            self._socket.send(chunk, 0, chunk_bytes < _ZERO_COPY_BYTES)
        else:
            self._socket.send(packed)
        self.torn = False

    def receive(self, wait_milliseconds: int) -> tuple[bytes, memoryview] | None:
        """The next message, if one comes in time. The socket's end is left to its monitor."""
        self._socket.rcvtimeo = wait_milliseconds
        try:
            packed = self._socket.recv()
        except zmq.Again:
            return None
        self.torn = True
        more = self._socket.getsockopt(zmq.RCVMORE)
        chunk = self._socket.recv(copy=False).buffer if more else memoryview(b"")
        self.torn = False
        return packed, chunk

    def beat(self) -> None:
        """Nothing: libzmq answers heartbeats."""

    def close(self, packed: bytes) -> None:
        """Send a last message if possible."""
        with suppress(zmq.ZMQError):
            self._socket.send(packed, zmq.NOBLOCK)

    def abort(self) -> None:
        """Close without waiting."""


def open_encrypted(
    context: zmq.Context[Socket], address: str, curve: ClientCurve, timeout: float
) -> tuple[DealerData, Socket, Socket]:
    """Connect to a data address with keys: connection, socket, monitor. Raises SetupError."""
    dealer, monitor = connect_dealer(context, address, curve, once=True)
    shown = without_secret(address)
    handshakes = HandshakeWatch(monitor, shown, curve)
    deadline = time.monotonic() + timeout
    # It takes messages once its handshake has finished.
    while not dealer.poll(_POLL_MILLISECONDS, zmq.POLLOUT):
        handshakes.check()
        if time.monotonic() > deadline:
            raise handshakes.hint or SetupError(
                f"the server's data address {shown} cannot be reached within {timeout:g} s; "
                f"{_BOTH_OPEN}"
            )
    return DealerData(dealer), dealer, monitor


def open_plain(address: str, timeout: float, place: Place) -> Stream:
    """Connect to a plain data address, or through a relay. Raises SetupError if that fails."""
    deadline = time.monotonic() + timeout
    return Stream(_connected(address, timeout), deadline, place)


def _connected(address: str, timeout: float) -> socket.socket:
    if is_relayed(address):
        return open_stream(address, timeout)
    there = split_address(address, ("tcp",))
    if there is None:
        raise InputError(f"expected an address as tcp://127.0.0.1:9000, got {address!r}")
    try:
        return socket.create_connection(there[1:], timeout)
    except OSError as error:
        raise SetupError(
            f"the server's data address {address} cannot be reached: {error}; {_BOTH_OPEN}"
        ) from None


# A server checks ten times a second which data connections have gone, and reports that on control.
_WHY_SECONDS: Final = 2.0
# Servers whose libzmq looks for vanished hosts wait for 30 s.
BEAT_SECONDS: Final = 5.0


class ZeroMQWatch(Watch):
    """The :class:`tapml_rpc.watch.Watch` over a control socket of libzmq.

    This object owns `control`. `monitors` report a dropped connection: that of control first, and
    that of data if libzmq has it. `beat` sends the server's data socket a sign of life.
    """

    failures = (*Watch.failures, zmq.ZMQError)

    def __init__(
        self,
        control: Socket,
        monitors: Sequence[Socket],
        token: bytes,
        describe: Describe,
        *,
        beat: Callable[[], None],
    ) -> None:
        super().__init__(token, describe)
        self._control = control
        self._monitors = monitors
        self._beat = beat
        self._next_beat = time.monotonic() + BEAT_SECONDS
        self._poller = zmq.Poller()
        for source in (control, *monitors, self._waker.fileno()):
            self._poller.register(source, zmq.POLLIN)
        self.begin()

    def _say_what_is_due(self, now: float) -> None:
        super()._say_what_is_due(now)
        if now >= self._next_beat:
            self._beat()
            self._next_beat = now + BEAT_SECONDS

    def _look(self) -> bool:
        ready = dict(self._poller.poll(POLL_MILLISECONDS))
        self._waker.drain()
        # The server's own reason comes before the report that it is gone.
        heard = self._control in ready
        if heard:
            self._hear_all()
        if self._dropped or any(monitor in ready for monitor in self._monitors):
            self._hear_why()
            self._lose("the connection to the server dropped")
        return heard

    def _send(self, header: wire.Header) -> None:
        self._control.send(wire.pack({**header, "session": self._token}), zmq.NOBLOCK)

    def _hear_all(self) -> None:
        with suppress(zmq.Again):
            while True:
                self._hear(self._control.recv(zmq.NOBLOCK))

    def _hear_why(self) -> None:
        """Find out why a connection dropped: control says it, unless it has dropped, too."""
        dropped = self._monitors[0]
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(dropped, zmq.POLLIN)
        deadline = time.monotonic() + _WHY_SECONDS
        while self.lost is None and (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(int(left * 1000) + 1))
            self._hear_all()
            if dropped in ready:
                recv_monitor_message(dropped)
                return


def open_zeromq(
    address: str,
    *,
    timeout: float,
    kernel_deadline: float | None = None,
    curve: ClientCurve | None = None,
    lease: Held | str = "",
) -> Link:
    """Open a session with a server's ZeroMQ binding; see :func:`tapml_rpc.client.connect`.

    `curve` holds this client's keys and the
    server's public one; None for a server without. Raises SetupError if nothing answers, the server
    takes no more sessions, or the keys do not match; ProtocolError if it refuses, e.g. because of
    its version.
    """
    shown = without_secret(address)
    context: zmq.Context[Socket] = zmq.Context()
    data: Stream | DealerData | None = None
    try:
        control, *monitors = connect_dealer(context, address, curve)
        sockets = [control, *monitors]
        packed = greet(
            control,
            HandshakeWatch(monitors[0], shown, curve),
            shown,
            wire.pack(hello(kernel_deadline, token_of(lease))),
            timeout=timeout,
        )
        welcome = Welcome.from_wire(packed, shown)
        unanswered = Unanswered()
        data_address = _same_host(welcome.data_address, address)
        if curve is None:
            data = open_plain(data_address, timeout, unanswered.place)
        else:
            data, dealer, monitor = open_encrypted(context, data_address, curve, timeout)
            monitors.append(monitor)
            sockets += [dealer, monitor]
        beat = data.beat

        def watch(describe: Describe) -> ZeroMQWatch:
            return ZeroMQWatch(control, monitors, welcome.token, describe, beat=beat)

        link = Link(
            shown,
            welcome,
            data,
            unanswered,
            watch,
            lease=held(lease),
            on_closed=lambda: context.destroy(linger=100),
        )
    except BaseException:
        if data is not None:
            data.abort()
        context.destroy(linger=0)
        raise
    finalize(link, _end, context, sockets).atexit = False
    return link


def greet(
    control: Socket, handshakes: HandshakeWatch, address: str, packed: bytes, *, timeout: float
) -> bytes:
    """Send a hello and wait for its answer; raises TapmlError if none comes."""
    sent = False
    deadline = time.monotonic() + timeout
    # libzmq may have given the connection up by now: a send that blocks would do so for ever.
    while not (sent and control.poll(_POLL_MILLISECONDS)):
        if not sent and control.poll(_POLL_MILLISECONDS, zmq.POLLOUT):
            with suppress(zmq.Again):
                control.send(packed, zmq.NOBLOCK)
                sent = True
                continue
        handshakes.check()
        if time.monotonic() > deadline:
            raise handshakes.hint or UnreachableError(
                f"no tapml server answers at {address} within {timeout:g} s; "
                "start one there with `tapml rpc serve`"
            )
    return control.recv()


def _end(context: zmq.Context[Socket], sockets: list[Socket]) -> None:
    """End a lost session's sockets first: a context that ends first waits for them."""
    for each in sockets:
        each.close(linger=0)
    context.destroy(linger=0)


def _same_host(data_address: str, control_address: str) -> str:
    """The data socket's address as this side reaches it: the host we connected to, its port."""
    if is_relayed(control_address):
        return data_address_beside(control_address)
    host = control_address.rpartition(":")[0]
    return f"{host}:{data_address.rpartition(':')[2]}"
