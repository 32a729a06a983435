"""The ZeroMQ binding of a supervisor: control, data, and one thread on which nothing waits.

Control is a ROUTER of libzmq; so is data where it is encrypted, and else it is sockets of ours.
"""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from typing import Final

import zmq

from tapml_rpc import wire
from tapml_rpc.device_loop import bind_router
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.security.curve import Authenticator, ServerCurve, client_identity
from tapml_rpc.supervisor.data_service import DataService
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.plain_data import PlainData
from tapml_rpc.supervisor.refusals import check_epoch
from tapml_rpc.supervisor.relay import Relay
from tapml_rpc.supervisor.router_data import TURN, RouterData, split, take
from tapml_rpc.supervisor.zmq_channel import DataEnd, Socket, ZmqChannel
from tapml_targets.errors import ProtocolError, SetupError, TapmlError

_POLL_SECONDS: Final = 0.05
_CHECK_SECONDS: Final = 0.1
_FOR_TRACKERS: Final = ("register", "request", "list")


def _port_advice(error: OSError | zmq.ZMQError) -> str:
    if error.errno not in (zmq.EADDRINUSE, errno.EADDRINUSE):
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
        self._selector = DefaultSelector()
        self._data: DataService
        try:
            if curve is None:
                self._data = PlainData(self, self._selector, data_address)
            else:
                self._data = RouterData(
                    self, self._selector, self._context, data_address, hub.bounds, heartbeats, curve
                )
            self._control = bind_router(
                self._context, control_address, hub.bounds, heartbeats, curve=curve
            )
        except (OSError, zmq.ZMQError) as error:
            self._end_context(linger=0)
            raise SetupError(f"cannot listen: {error}{_port_advice(error)}") from None
        self.address = self._control.getsockopt_string(zmq.LAST_ENDPOINT)
        self.data_address = self._data.address
        self._relays: dict[bytes, tuple[Relay, ZmqChannel]] = {}
        self._watched: dict[int, Relay] = {}
        # Readable when the socket's state has changed: _serve_control looks what it is.
        self._look_at_control = True
        self._selector.register(self._control.fileno(), EVENT_READ, self._note_control)

    def run(self, should_stop: Callable[[], bool], wake_fds: tuple[int, ...] = ()) -> None:
        """Serve until `should_stop` says so; `wake_fds` becoming readable makes it look."""
        for fd in wake_fds:
            self._selector.register(fd, EVENT_READ)
        next_check, more = 0.0, False
        try:
            while not should_stop():
                for key, events in self._selector.select(0 if more else _POLL_SECONDS):
                    if key.data is not None:
                        key.data(events)
                now = time.monotonic()
                if now >= next_check:
                    next_check = now + _CHECK_SECONDS
                    self._check(now)
                    # What is sent on the socket in between may have taken its sign away.
                    self._look_at_control = True
                if self._look_at_control:
                    self._look_at_control = self._serve_control()
                more = self._data.serve() or self._look_at_control
        finally:
            self.close()

    def close(self) -> None:
        """End every session and both sockets."""
        for relay, channel in list(self._relays.values()):
            relay.end("the server ends", kill=True)
            channel.settle()
        self._relays.clear()
        self._data.close()
        self._control.close(linger=200)
        self._end_context(linger=200)

    def claim(self, header: wire.Header, who: str, end: DataEnd) -> tuple[Relay, ZmqChannel]:
        """See :class:`tapml_rpc.supervisor.data_service.Desk`."""
        # Said first: a restarted server knows no session of its last life.
        check_epoch(header, self._hub.epoch)
        relay, channel = self._find(header, who)
        if channel.data is None:
            channel.data = end
        elif channel.data != end:
            raise ProtocolError("this session's data comes over another connection")
        return relay, channel

    def settle(self, relay: Relay) -> None:
        """See :class:`tapml_rpc.supervisor.data_service.Desk`."""
        if not relay.ended or self._relays.pop(relay.token, None) is None:
            return
        for descriptor, watched in list(self._watched.items()):
            if watched is relay:
                del self._watched[descriptor]
                with suppress(KeyError):
                    self._selector.unregister(descriptor)

    def show(self, error: Exception) -> None:
        """See :class:`tapml_rpc.supervisor.data_service.Desk`."""
        # A fault of ours must cost the one message, and must be seen.
        traceback.print_exception(error)

    def _end_context(self, linger: int) -> None:
        self._selector.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.destroy(linger=linger)

    def _note_control(self, events: int) -> None:
        self._look_at_control = True

    def _readable(self, relay: Relay, events: int) -> None:
        relay.guarded(relay.readable)
        self.settle(relay)

    def _serve_control(self) -> bool:
        """Take messages off the control socket; True where there are more."""
        for _ in range(TURN):
            frames = take(self._control)
            if frames is None:
                return False
            try:
                identity, packed, _ = split(frames)
                self._dispatch_control(identity, packed)
            except Exception as error:
                self._refuse(frames[0].bytes, error)
        return True

    def _dispatch_control(self, identity: zmq.Frame, packed: bytes) -> None:
        header = wire.unpack(packed)
        if header.get("type") == "hello":
            self._hello(identity, header)
            return
        if header.get("type") in _FOR_TRACKERS:
            raise SetupError(
                "this is a device's own server and no tracker: its address itself stands after "
                "--device"
            )
        relay, _ = self._find(header, self._who(identity))
        reply = relay.control(header)
        if reply is not None:
            self._hub.count(reply)
            with suppress(zmq.ZMQError):
                self._control.send_multipart([identity.bytes, wire.pack(reply)], zmq.NOBLOCK)
        self.settle(relay)

    def _hello(self, identity: zmq.Frame, header: wire.Header) -> None:
        for former, known in list(self._relays.values()):
            if known.control_identity == identity.bytes:
                # A connection has one session: nobody fills the server from a single one.
                former.end("its client began another on the same connection")
                self.settle(former)
        channel = ZmqChannel(self._control, identity.bytes)
        self._make_room()
        relay, welcome = self._hub.hello(header, channel, self._who(identity))
        welcome["data_address"] = self.data_address
        self._relays[relay.token] = relay, channel
        self._watched[relay.fileno()] = relay
        with suppress(KeyError):
            # The number of one that has ended and was not settled yet.
            self._selector.unregister(relay.fileno())
        self._selector.register(relay.fileno(), EVENT_READ, partial(self._readable, relay))
        if not channel.send_control(wire.pack(welcome)):
            relay.end("its connection is gone")
            self.settle(relay)
        self._hub.refill()

    def _make_room(self) -> None:
        """Sessions whose connection is gone make room at once."""
        if len(self._hub.sessions()) < self._hub.bounds.sessions:
            return
        for relay, channel in list(self._relays.values()):
            if not channel.send_control(wire.pack({"type": "probe"})):
                relay.end("its connection is gone")
                self.settle(relay)

    def _find(self, header: wire.Header, who: str) -> tuple[Relay, ZmqChannel]:
        token = wire.octets(header.get("session"), "session", 64)
        found = self._relays.get(token)
        if found is None or found[0].identity != who:
            raise self._hub.lost(token, who)
        return found

    def _who(self, frame: zmq.Frame) -> str:
        """The public key that libzmq has checked."""
        return client_identity(frame, self._curve)

    def _check(self, now: float) -> None:
        self._data.check(now)
        for relay, channel in list(self._relays.values()):
            channel.settle()
            relay.guarded(partial(relay.check, now))
            self.settle(relay)

    def _refuse(self, identity: bytes, error: Exception) -> None:
        """Tell a peer what was wrong with a message; it may be gone, or never read it."""
        if not isinstance(error, TapmlError):
            self.show(error)
        reply: wire.Header = {"type": "refused", "error": failure_to_wire(error)}
        with suppress(zmq.ZMQError, ProtocolError):
            self._control.send_multipart([identity, wire.pack(reply)], zmq.NOBLOCK)
