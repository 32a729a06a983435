"""ROUTER sockets of libzmq: binding, parsing of messages, ended connections.

libzmq silently disconnects a peer over a frame that is too long, so its limit is above the
protocol's, and what is over the protocol's bounds is refused with a message. A ROUTER does not
report whose connection has ended; its monitor reports which descriptor was closed, and a message by
which descriptor it came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from selectors import EVENT_READ
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.flow import Forwarder
from tapml_rpc.host_names import numeric
from tapml_rpc.security.curve import ServerCurve, apply_server, client_identity
from tapml_targets.errors import ProtocolError

Socket = zmq.Socket[bytes]

GONE: Final = (
    f"is gone: it was cut, or closed because of a frame of over {wire.MAX_FRAME_BYTES} bytes; "
    f"a header has at most {wire.MAX_HEADER_BYTES} and a chunk {wire.MAX_CHUNK_BYTES}"
)
"""The end of a sentence about a connection. libzmq does not distinguish these."""

_HANDSHAKE_MILLISECONDS: Final = 3000
# With more of them libzmq waits until they are read, and their reader may be running a kernel.
_UNREAD_EVENTS: Final = 1 << 16
# Their last messages are read long before that many more connections end.
_LOST_KEPT: Final = 256
_NO_CHUNK: Final = memoryview(b"")


@dataclass(frozen=True)
class RouterBounds:
    """What a ROUTER of libzmq keeps and waits for.

    `most_bytes` is its longest frame. `received` and `unsent` are messages that wait, the latter
    for each peer. `beat_milliseconds` and `silent_milliseconds` are between two heartbeats, and
    after one that is not answered; 0 for none.
    """

    most_bytes: int = wire.MAX_FRAME_BYTES
    received: int = 32
    unsent: int = 256
    # For a host that vanishes. A client that is merely stopped for a while may come back.
    beat_milliseconds: int = 5000
    silent_milliseconds: int = 30000


def bind_router(
    context: zmq.Context[Socket],
    address: str,
    bounds: RouterBounds,
    curve: ServerCurve | None = None,
) -> tuple[Socket, RouterWatch]:
    """A ROUTER socket with every queue and frame bounded, and the watch over its connections.

    The watch must live as long as the socket: libzmq waits for the receiver of its events.

    With `curve` its context needs an :class:`~tapml_rpc.security.curve.Authenticator` first.
    """
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, bounds.most_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MILLISECONDS)
    if bounds.beat_milliseconds:
        socket.setsockopt(zmq.HEARTBEAT_IVL, bounds.beat_milliseconds)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, bounds.silent_milliseconds)
    socket.setsockopt(zmq.RCVHWM, bounds.received)
    socket.setsockopt(zmq.SNDHWM, bounds.unsent)
    apply_server(socket, curve)
    # Before anybody can connect.
    watch = RouterWatch(socket)
    socket.bind(address)
    return socket, watch


def take(socket: Socket, *, wait: bool = False) -> list[Any] | None:
    """Take a message off a ROUTER, the sender's identity first, waited for; None for none."""
    try:
        frames: list[Any] = [socket.recv(0 if wait else zmq.NOBLOCK, copy=False)]
    except zmq.Again:
        return None
    while socket.getsockopt(zmq.RCVMORE):
        # A header is copied; a chunk stays in libzmq's memory.
        frames.append(socket.recv(copy=len(frames) == 1))
    return frames


def split(frames: list[Any]) -> tuple[zmq.Frame, bytes, memoryview]:
    """The identity, the header and the chunk of a message; raises ProtocolError for others."""
    if not 2 <= len(frames) <= 3:
        raise ProtocolError("a message is a header and at most a chunk")
    return frames[0], frames[1], frames[2].buffer if len(frames) == 3 else _NO_CHUNK


def unpack_control(packed: bytes) -> wire.Header:
    """Unpack a header from control; raises ProtocolError if it is malformed or too long."""
    if len(packed) > wire.MAX_STRANGER_BYTES:
        raise ProtocolError(
            f"a header of {len(packed)} bytes; on control one has 1 to {wire.MAX_STRANGER_BYTES}"
        )
    return wire.unpack(packed)


class RouterWatch:
    """Reports whose connection to a `router`, which is not bound yet, has gone."""

    def __init__(self, router: Socket) -> None:
        self._router = router
        where = f"inproc://watch-{router.fileno()}"
        router.monitor(where, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor: Socket = router.context.socket(zmq.PAIR)
        self._monitor.rcvhwm = _UNREAD_EVENTS
        self._monitor.connect(where)
        # Who speaks on each open descriptor; b"" where nobody has yet.
        self._speakers: dict[int, bytes] = {}
        self._known: set[bytes] = set()
        self._lost: deque[bytes] = deque(maxlen=_LOST_KEPT)
        self._gone: list[bytes] = []

    def heard(self, frame: zmq.Frame) -> None:
        """Note that a message has come from the identity in this frame, its first.

        The number of a closed descriptor is soon reused, so the monitor is read first: when a
        message is there, so are the events of everything that preceded its connection.
        """
        identity = frame.bytes
        # What a lost connection left unread comes by a number that may be another's by now.
        if identity in self._known or identity in self._lost:
            return
        self._hear()
        # A peer that had hung up before it was accepted has no descriptor in its messages.
        former = None
        with suppress(zmq.ZMQError):
            descriptor = int(frame.get(zmq.SRCFD))
            former = self._speakers.get(descriptor)
        if former is None:
            # Closed since.
            self._gone.append(identity)
            return
        if former:
            # Its number had been another's, whose message came late, and whose end was already
            # read.
            self._lose(former)
        self._speakers[descriptor] = identity
        self._known.add(identity)

    def gone(self) -> list[bytes]:
        """Return the identities whose connections had ended at the previous call.

        They are reported one call late: the monitor may report the end of a connection before its
        last messages have been read.
        """
        gone, self._gone = self._gone, []
        self._hear()
        return gone

    def close(self) -> None:
        """Stop; call it before the router is closed."""
        self._router.disable_monitor()
        self._monitor.close()

    def _hear(self) -> None:
        with suppress(zmq.Again):
            while True:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
                descriptor = int(event["value"])
                if event["event"] == zmq.EVENT_ACCEPTED:
                    self._speakers[descriptor] = b""
                elif speaker := self._speakers.pop(descriptor, b""):
                    self._lose(speaker)

    def _lose(self, identity: bytes) -> None:
        self._known.discard(identity)
        self._lost.append(identity)
        self._gone.append(identity)


_ZERO_COPY_BYTES: Final = 64 << 10


class RouterEnd:
    """A client on a ROUTER: its routing `key`, and the first `frame` of a message of its."""

    def __init__(self, data: Socket, key: bytes, frame: zmq.Frame | None = None) -> None:
        self.key = key
        self._frame = frame
        self._data = data
        self._unsent: deque[tuple[zmq.MessageTracker | None, Callable[[], None]]] = deque()

    @property
    def host(self) -> str:
        """Its numeric address, which libzmq adds to what comes before the peer can."""
        return str(numeric("" if self._frame is None else str(self._frame.get("Peer-Address"))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouterEnd) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def send(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes] = (),
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """Send a packed header and its chunk."""
        tracker = None
        try:
            self._data.send(self.key, zmq.SNDMORE | zmq.NOBLOCK)
            if not parts:
                self._data.send(packed, zmq.NOBLOCK)
            else:
                self._data.send(packed, zmq.SNDMORE | zmq.NOBLOCK)
                chunk = parts[0] if len(parts) == 1 else b"".join(parts)
                if len(chunk) < _ZERO_COPY_BYTES:
                    self._data.send(chunk, zmq.NOBLOCK)
                else:
                    tracker = self._data.send(chunk, zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError:
            return False
        if sent is not None:
            self._unsent.append((tracker, sent))
            self.settle()
        return True

    def settle(self) -> None:
        """Report payloads that libzmq has sent."""
        unsent = self._unsent
        while unsent and (unsent[0][0] is None or unsent[0][0].done):
            unsent.popleft()[1]()


# Messages taken from a socket before the others get their turn.
_TURN: Final = 8

Take = Callable[[RouterEnd, str, bytes, memoryview], None]
"""Handles a message: its connection, its client's identity, its header and its chunk."""


class RouterService:
    """A ROUTER at `address`: hands messages to `take`, and connections that are gone to `gone`.

    `refuse` tells the sender what `take` raises, and that its bytes are not a message. The other
    arguments are those of :func:`tapml_rpc.zeromq.router.bind_router`.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        context: zmq.Context[Socket],
        address: str,
        bounds: RouterBounds,
        *,
        curve: ServerCurve | None,
        take: Take,
        refuse: Callable[[RouterEnd, Exception], None],
        gone: Callable[[RouterEnd], None],
    ) -> None:
        self._curve = curve
        self._take = take
        self._refuse = refuse
        self._gone = gone
        self._socket, self._watch = bind_router(context, address, bounds, curve)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        # Readable when the socket's state has changed; serve() finds out how.
        forwarder.watch(self._socket.fileno(), EVENT_READ, lambda events: None)

    def serve(self) -> bool:
        """Handle waiting messages; True if there are more."""
        for _ in range(_TURN):
            frames = take(self._socket)
            if frames is None:
                return False
            end = RouterEnd(self._socket, frames[0].bytes, frames[0])
            try:
                self._watch.heard(frames[0])
                identity, packed, chunk = split(frames)
                self._take(end, client_identity(identity, self._curve), packed, chunk)
            except Exception as error:
                self._refuse(end, error)
        return True

    def pending(self) -> bool:
        """Whether a message waits: its descriptor shows that only once."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def end(self, key: bytes) -> RouterEnd:
        """The peer with this routing id."""
        return RouterEnd(self._socket, key)

    def check(self, now: float) -> None:
        """Report connections that are gone; libzmq has its own clocks."""
        for identity in self._watch.gone():
            self._gone(self.end(identity))

    def close(self) -> None:
        """Close the socket."""
        self._watch.close()
        self._socket.close(linger=200)
