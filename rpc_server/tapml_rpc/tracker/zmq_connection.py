"""A connection to a tracker over ZeroMQ.

There are two kinds of heartbeat. ZeroMQ's own, which its I/O thread answers even while Python is
busy, shows within three seconds that a process or its host has gone or is stopped; the messages of
`beat` show that the program behind it still works, and may take longer.
"""

from __future__ import annotations

import os
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.security.bind import split_address
from tapml_rpc.security.credentials import Credentials
from tapml_rpc.security.handshake import handshake_failure
from tapml_rpc.tracker.connection import Connection
from tapml_rpc.tracker.records import HEARTBEAT_SECONDS, HEARTBEAT_TIMEOUT_SECONDS
from tapml_rpc.zeromq.opening import Socket, connect_dealer
from tapml_targets.errors import InputError, SetupError


class ZmqConnection(Connection):
    """The :class:`tapml_rpc.tracker.connection.Connection` to ``tcp://host:port``.

    `credentials` are this side's own keys and the tracker's public one, if it asks for them. Raises
    InputError if the address is malformed.
    """

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        super().__init__(address, host_of(address), credentials)
        self._talked = False
        self._curve = credentials.curve() if credentials is not None else None
        self._context: zmq.Context[Socket] = zmq.Context()
        beats = HEARTBEAT_SECONDS, HEARTBEAT_TIMEOUT_SECONDS
        try:
            self._socket, self._monitor = connect_dealer(
                self._context, address, self._curve, beats=beats, most_bytes=wire.MAX_HEADER_BYTES
            )
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def watch(self, descriptor: int) -> None:
        """See :meth:`Connection.watch`."""
        self._poller.register(descriptor, zmq.POLLIN)

    def send(self, header: wire.Header) -> None:
        """Send a message; it is dropped if the tracker does not read."""
        with suppress(zmq.Again):
            self._socket.send(wire.pack(header), zmq.NOBLOCK)

    def _next(self, wait_milliseconds: int) -> wire.Header | None:
        ready = dict(self._poller.poll(wait_milliseconds))
        with suppress(zmq.Again):
            packed = self._socket.recv(zmq.NOBLOCK)
            self._talked = True
            return wire.unpack(packed)
        if self._monitor in ready:
            self._look_why()
        return None

    def _look_why(self) -> None:
        event = dict(recv_monitor_message(self._monitor))
        failure = handshake_failure(event, self.address, self._curve, variable="TAPML_TRACKER_KEY")
        if failure is not None:
            if event["event"] != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL or self._curve is not None:
                raise failure
        elif self._talked:
            raise SetupError(f"the tracker at {self.address} is gone: its connection dropped")
        # A connection that drops before any message gives the reason in a later event, or comes
        # again.

    def close(self, *last: wire.Header) -> None:
        """Send waiting messages and end the connection; never raises, never waits long."""
        if os.getpid() != self._owner:
            return
        with suppress(zmq.ZMQError):
            for header in last:
                self._socket.send(wire.pack(header), zmq.NOBLOCK)
        self._socket.disable_monitor()
        self._context.destroy(linger=200 if last else 0)


def host_of(address: str) -> str:
    """The host of a tracker's address; raises InputError if it is malformed."""
    there = split_address(address, ("tcp",))
    if there is not None and there[2]:
        return there[1]
    raise InputError(
        f"a tracker's address is tcp://HOST:PORT, ws://HOST:PORT or wss://HOST:PORT, "
        f"got {address!r}"
    )
