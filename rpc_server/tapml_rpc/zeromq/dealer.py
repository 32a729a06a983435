"""A client's socket of libzmq, and the monitor of its connection."""

from __future__ import annotations

from typing import Final, TypeAlias

import zmq

from tapml_rpc import wire
from tapml_rpc.security.curve import ClientCurve, apply_client
from tapml_rpc.security.handshake import MONITORED
from tapml_rpc.tracker.route import connect_socket
from tapml_targets.errors import InputError

# With -1 libzmq would drop what has come before a connection's end and was not taken yet.
_NEVER_MILLISECONDS: Final = 24 * 3600 * 1000

Socket: TypeAlias = zmq.Socket[bytes]


def connect_dealer(
    context: zmq.Context[Socket], address: str, curve: ClientCurve | None, *, once: bool = False
) -> tuple[Socket, Socket]:
    """A DEALER that connects to an address, and its monitor.

    `once`: messages wait for the connection, and nothing reconnects after it. Raises InputError if
    the address is malformed.
    """
    dealer: Socket = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES)
    dealer.setsockopt(zmq.HANDSHAKE_IVL, 3000)
    dealer.setsockopt(zmq.IPV6, int("[" in address))
    if once:
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.setsockopt(zmq.RECONNECT_IVL, _NEVER_MILLISECONDS)
    apply_client(dealer, curve)
    monitor: Socket = dealer.get_monitor_socket(MONITORED)
    try:
        connect_socket(dealer, address)
    except zmq.ZMQError as error:
        raise InputError(
            f"expected an address such as tcp://127.0.0.1:9000, got {address!r}: {error}"
        ) from None
    return dealer, monitor
