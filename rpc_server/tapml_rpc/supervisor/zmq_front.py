"""The ZeroMQ binding of a supervisor: two ROUTER sockets, one thread, nothing that waits."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import zmq

from tapml_rpc import wire
from tapml_rpc.device_loop import bind_router
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.security.curve import Authenticator, ServerCurve, client_identity
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.refusals import check_epoch
from tapml_rpc.supervisor.relay import Relay
from tapml_targets.errors import ProtocolError, SetupError, TapmlError

_POLL_MILLISECONDS: Final = 50
_CHECK_SECONDS: Final = 0.1
_ZERO_COPY_BYTES: Final = 64 << 10
_FOR_TRACKERS: Final = ("register", "request", "list")
# Messages taken from a socket before the others get their turn.
_TURN: Final = 8
_NO_CHUNK: Final = memoryview(b"")

Socket = zmq.Socket[bytes]


class ZmqChannel:
    """A client on the two sockets; see :class:`tapml_rpc.supervisor.channel.Channel`."""

    def __init__(self, control: Socket, control_identity: bytes, data: Socket) -> None:
        self._control = control
        self.control_identity = control_identity
        self._data = data
        # Known from the first data message on.
        self.data_identity = b""
        self._unsent: deque[tuple[zmq.MessageTracker | None, Callable[[], None]]] = deque()

    def send_control(self, packed: bytes) -> bool:
        """See the protocol."""
        try:
            self._control.send_multipart([self.control_identity, packed], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def send_data(
        self,
        packed: bytes,
        parts: Sequence[memoryview | bytes],
        sent: Callable[[], None] | None = None,
    ) -> bool:
        """See the protocol."""
        tracker = None
        try:
            self._data.send(self.data_identity, zmq.SNDMORE | zmq.NOBLOCK)
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
        """Say of payloads that have left that they have."""
        unsent = self._unsent
        while unsent and (unsent[0][0] is None or unsent[0][0].done):
            unsent.popleft()[1]()


def _port_advice(error: zmq.ZMQError) -> str:
    if error.errno != zmq.EADDRINUSE:
        return ""
    return "; another server listens there: end it, or give another port (0 takes a free one)"


class ZmqFront:
    """Serves ZeroMQ clients.

    Parameters
    ----------
    hub
        The supervisor.
    control_address, data_address
        ``tcp://host:port``; port 0 takes a free one.
    curve
        Keys; None for none, on loopback alone.

    Attributes
    ----------
    address, data_address
        The sockets' addresses as clients are told them.

    Raises
    ------
    SetupError
        If an address cannot be used.
    """

    def __init__(
        self,
        hub: Hub,
        control_address: str,
        data_address: str,
        *,
        curve: ServerCurve | None = None,
    ) -> None:
        self._hub = hub
        self._curve = curve
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.setsockopt(zmq.IPV6, int("[" in control_address))
        self._authenticator = None if curve is None else Authenticator(self._context, curve.clients)
        heartbeats = hub.options.silence_seconds > 0
        try:
            self._data = bind_router(
                self._context, data_address, hub.bounds, heartbeats, curve=curve
            )
            self._control = bind_router(
                self._context, control_address, hub.bounds, heartbeats, curve=curve
            )
        except zmq.ZMQError as error:
            self._end_context(linger=0)
            raise SetupError(f"cannot listen: {error}{_port_advice(error)}") from None
        self.address = self._control.getsockopt_string(zmq.LAST_ENDPOINT)
        self.data_address = self._data.getsockopt_string(zmq.LAST_ENDPOINT)
        self._relays: dict[bytes, tuple[Relay, ZmqChannel]] = {}
        self._watched: dict[int, Relay] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._control, zmq.POLLIN)
        self._poller.register(self._data, zmq.POLLIN)

    def run(self, should_stop: Callable[[], bool], wake_fds: tuple[int, ...] = ()) -> None:
        """Serve until `should_stop` says so; `wake_fds` becoming readable makes it look."""
        for fd in wake_fds:
            self._poller.register(fd, zmq.POLLIN)
        next_check = 0.0
        try:
            while not should_stop():
                for source, _ in self._poller.poll(_POLL_MILLISECONDS):
                    self._serve(source)
                now = time.monotonic()
                if now >= next_check:
                    next_check = now + _CHECK_SECONDS
                    self._check(now)
        finally:
            self.close()

    def close(self) -> None:
        """End every session and both sockets."""
        for relay, channel in list(self._relays.values()):
            relay.end("the server ends", kill=True)
            channel.settle()
        self._relays.clear()
        self._control.close(linger=200)
        self._data.close(linger=200)
        self._end_context(linger=200)

    def _end_context(self, linger: int) -> None:
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.destroy(linger=linger)

    def _serve(self, source: Any) -> None:
        if source is self._control:
            for _ in range(_TURN):
                if not self._receive(self._control, self._dispatch_control):
                    return
        elif source is self._data:
            for _ in range(_TURN):
                if not self._receive(self._data, self._dispatch_data):
                    return
        elif source in self._watched:
            relay = self._watched[source]
            relay.guarded(relay.readable)
            self._settle(relay)

    def _receive(
        self, socket: Socket, dispatch: Callable[[zmq.Frame, bytes, memoryview], None]
    ) -> bool:
        """Take one message; False where none is there."""
        try:
            identity = socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        frames: list[Any] = []
        while socket.getsockopt(zmq.RCVMORE):
            # The first frame is the header; a chunk stays where libzmq has it.
            frames.append(socket.recv(copy=not frames))
        try:
            if not 1 <= len(frames) <= 2:
                raise ProtocolError("a message is a header and at most a chunk")
            dispatch(identity, frames[0], frames[1].buffer if len(frames) == 2 else _NO_CHUNK)
        except Exception as error:
            self._refuse(socket, identity.bytes, frames, error)
        return True

    def _dispatch_control(self, identity: zmq.Frame, packed: bytes, chunk: memoryview) -> None:
        header = wire.unpack(packed)
        if header.get("type") == "hello":
            self._hello(identity, header)
            return
        if header.get("type") in _FOR_TRACKERS:
            raise SetupError(
                "this is a device's own server and no tracker: its address itself stands after "
                "--device"
            )
        relay, _ = self._find(header, identity)
        reply = relay.control(header)
        if reply is not None:
            self._hub.count(reply)
            with suppress(zmq.ZMQError):
                self._control.send_multipart([identity.bytes, wire.pack(reply)], zmq.NOBLOCK)
        self._settle(relay)

    def _dispatch_data(self, identity: zmq.Frame, packed: bytes, chunk: memoryview) -> None:
        header = wire.unpack(packed)
        # Said first: a restarted server knows no session of its last life.
        check_epoch(header, self._hub.epoch)
        relay, channel = self._find(header, identity)
        if not channel.data_identity:
            channel.data_identity = identity.bytes
        elif channel.data_identity != identity.bytes:
            raise ProtocolError("this session's data comes over another connection")
        # Room in the ring before the worker is told of more that needs some.
        channel.settle()
        relay.accept(header, packed, chunk)
        self._settle(relay)

    def _hello(self, identity: zmq.Frame, header: wire.Header) -> None:
        for former, known in list(self._relays.values()):
            if known.control_identity == identity.bytes:
                # A connection has one session: nobody fills the server from a single one.
                former.end("its client began another on the same connection")
                self._settle(former)
        channel = ZmqChannel(self._control, identity.bytes, self._data)
        self._make_room()
        relay, welcome = self._hub.hello(header, channel, self._who(identity))
        welcome["data_address"] = self.data_address
        self._relays[relay.token] = relay, channel
        self._watched[relay.fileno()] = relay
        self._poller.register(relay.fileno(), zmq.POLLIN)
        if not channel.send_control(wire.pack(welcome)):
            relay.end("its connection is gone")
            self._settle(relay)
        self._hub.refill()

    def _make_room(self) -> None:
        """Sessions whose connection is gone make room at once."""
        if len(self._hub.sessions()) < self._hub.bounds.sessions:
            return
        for relay, channel in list(self._relays.values()):
            if not channel.send_control(wire.pack({"type": "probe"})):
                relay.end("its connection is gone")
                self._settle(relay)

    def _find(self, header: wire.Header, identity: zmq.Frame) -> tuple[Relay, ZmqChannel]:
        token, who = wire.octets(header.get("session"), "session", 64), self._who(identity)
        found = self._relays.get(token)
        if found is None or found[0].identity != who:
            raise self._hub.lost(token, who)
        return found

    def _who(self, frame: zmq.Frame) -> str:
        """The public key that libzmq has checked."""
        return client_identity(frame, self._curve)

    def _check(self, now: float) -> None:
        for relay, channel in list(self._relays.values()):
            channel.settle()
            relay.guarded(partial(relay.check, now))
            self._settle(relay)

    def _settle(self, relay: Relay) -> None:
        """Forget a session that has ended."""
        if not relay.ended or self._relays.pop(relay.token, None) is None:
            return
        for descriptor, watched in list(self._watched.items()):
            if watched is relay:
                del self._watched[descriptor]
                with suppress(KeyError):
                    self._poller.unregister(descriptor)

    def _refuse(self, socket: Socket, identity: bytes, frames: list[Any], error: Exception) -> None:
        """Tell a peer what was wrong with a message; it may be gone, or never read it."""
        if not isinstance(error, TapmlError):
            # A fault of ours must cost the one message, and must be seen.
            traceback.print_exc()
        reply: wire.Header = {"type": "refused", "error": failure_to_wire(error)}
        if socket is self._data:
            reply["type"] = "error"
            with suppress(ProtocolError, IndexError):
                sequence = wire.unpack(frames[0]).get("sequence")
                if type(sequence) is int and 0 <= sequence <= wire.MAX_INTEGER:
                    reply["sequence"] = sequence
        with suppress(zmq.ZMQError, ProtocolError):
            socket.send_multipart([identity, wire.pack(reply)], zmq.NOBLOCK)
