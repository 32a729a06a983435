"""The ZeroMQ binding of a supervisor: control, data, and one thread on which nothing waits.

Each is a ROUTER of libzmq if encrypted, otherwise sockets of ours.
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
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.refusals import check_epoch
from tapml_rpc.security.curve import Authenticator, ServerCurve
from tapml_rpc.supervisor.control_service import ControlConnection, RouterControl
from tapml_rpc.supervisor.data_service import DataService
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.plain_connection import PlainConnection
from tapml_rpc.supervisor.relay import Relay
from tapml_rpc.supervisor.router_data import RouterData
from tapml_rpc.supervisor.zmq_channel import End, Socket, ZmqChannel
from tapml_rpc.zmtp.listener import Listener
from tapml_targets.errors import ProtocolError, SetupError, TapmlError

_POLL_SECONDS: Final = 0.05
_CHECK_SECONDS: Final = 0.1
_FOR_TRACKERS: Final = ("register", "request", "list")


def _port_advice(error: OSError | zmq.ZMQError) -> str:
    if error.errno not in (zmq.EADDRINUSE, errno.EADDRINUSE):
        return ""
    return "; another server listens there: end it, or give another port (0 takes a free one)"


class ZmqFront:
    """Serves ZeroMQ clients on ``tcp://host:port``; port 0 takes a free one.

    Without `curve` keys it serves loopback only. `address` and `data_address` are what clients are
    given. Raises SetupError if an address cannot be used.
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
        self._relays: dict[bytes, tuple[Relay, ZmqChannel]] = {}
        self._watched: dict[int, Relay] = {}
        self._data: DataService
        self._control: DataService
        try:
            if curve is None:
                plain = partial(PlainConnection, self)
                self._data = Listener(self._selector, data_address, plain, self.show)
                control = partial(ControlConnection, self)
                self._control = Listener(self._selector, control_address, control, self.show)
            else:
                given = (self._context, data_address, hub.bounds, heartbeats, curve)
                self._data = RouterData(self, self._selector, *given)
                given = (self._context, control_address, hub.bounds, heartbeats, curve)
                self._control = RouterControl(self, self._selector, *given)
        except (OSError, zmq.ZMQError) as error:
            self._end_context(linger=0)
            why = zmq.strerror(error.errno) if error.errno else str(error)
            raise SetupError(f"cannot listen: {why}{_port_advice(error)}") from None
        self.address = self._control.address
        self.data_address = self._data.address

    def run(self, should_stop: Callable[[], bool], wake_fds: tuple[int, ...] = ()) -> None:
        """Serve until `should_stop` returns true; a readable `wake_fds` makes it check."""
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
                more = self._control.serve()
                more = self._data.serve() or more
        finally:
            self.close()

    def close(self) -> None:
        """End every session and both sockets."""
        for relay, channel in list(self._relays.values()):
            relay.give_up("the server ends", kill=True)
            channel.settle()
        self._relays.clear()
        self._data.close()
        self._control.close()
        self._end_context(linger=200)

    def claim(self, header: wire.Header, who: str, end: End) -> tuple[Relay, ZmqChannel]:
        """The session that a message is for; `end` becomes its data connection."""
        # Checked first: a restarted server knows no session of its last lifetime.
        check_epoch(header, self._hub.epoch)
        relay, channel = self._find(header, who)
        if channel.data is None:
            channel.data = end
        elif channel.data != end:
            raise ProtocolError("this session's data comes over another connection")
        return relay, channel

    def settle(self, relay: Relay) -> None:
        """Forget a session that has ended."""
        if not relay.ended or self._relays.pop(relay.token, None) is None:
            return
        for descriptor, watched in list(self._watched.items()):
            if watched is relay:
                del self._watched[descriptor]
                with suppress(KeyError):
                    self._selector.unregister(descriptor)

    def show(self, error: Exception) -> None:
        """Report an internal fault."""
        # An internal fault must cost only the one message, and must be seen.
        traceback.print_exception(error)

    def _end_context(self, linger: int) -> None:
        self._selector.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.destroy(linger=linger)

    def _readable(self, relay: Relay, events: int) -> None:
        relay.guarded(relay.readable)
        self.settle(relay)

    def hear(self, end: End, who: str, header: wire.Header) -> None:
        """Handle a control message; its faults are raised."""
        if header.get("type") == "hello":
            self._hello(end, who, header)
            return
        if header.get("type") in _FOR_TRACKERS:
            raise SetupError(
                "this is a device's own server, not a tracker: give its address to --device"
            )
        relay, _ = self._find(header, who)
        reply = relay.control(header)
        if reply is not None:
            self._hub.count(reply)
            end.send(wire.pack(reply))
        self.settle(relay)

    def refuse(self, end: End, error: Exception) -> None:
        """Report to a peer what was wrong with a message."""
        if not isinstance(error, TapmlError):
            self.show(error)
        reply: wire.Header = {"type": "refused", "error": failure_to_wire(error)}
        with suppress(ProtocolError):
            end.send(wire.pack(reply))

    def controls(self, end: End) -> bool:
        """Whether a session that has not ended has this control connection."""
        return any(
            channel.control == end and not relay.ended for relay, channel in self._relays.values()
        )

    def control_gone(self, end: End, why: str) -> None:
        """End the session of a control connection that is gone."""
        self._end_of(end, why)

    def data_gone(self, end: End, why: str) -> None:
        """End the session of a data connection that is gone."""
        for relay, channel in list(self._relays.values()):
            if channel.data == end:
                relay.give_up(why)
                self.settle(relay)

    def _end_of(self, end: End, why: str) -> None:
        for relay, channel in list(self._relays.values()):
            if channel.control == end:
                relay.end(why)
                self.settle(relay)

    def _hello(self, end: End, who: str, header: wire.Header) -> None:
        # A connection has one session: no client can fill the server from a single one.
        self._end_of(end, "its client began another on the same connection")
        channel = ZmqChannel(end)
        self._make_room()
        relay, welcome = self._hub.hello(header, channel, who)
        welcome["data_address"] = self.data_address
        self._relays[relay.token] = relay, channel
        self._watched[relay.fileno()] = relay
        with suppress(KeyError):
            # A session that has ended and was not settled yet.
            self._selector.unregister(relay.fileno())
        self._selector.register(relay.fileno(), EVENT_READ, partial(self._readable, relay))
        if not channel.send_control(wire.pack(welcome)):
            relay.end("its connection is gone")
            self.settle(relay)
        self._hub.refill()

    def _make_room(self) -> None:
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

    def _check(self, now: float) -> None:
        self._data.check(now)
        self._control.check(now)
        for relay, channel in list(self._relays.values()):
            channel.settle()
            relay.guarded(partial(relay.check, now))
            self.settle(relay)
