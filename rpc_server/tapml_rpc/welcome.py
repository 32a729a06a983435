"""How a client comes to its welcome: the control socket, and the hello on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.security.curve import ClientCurve, apply_client
from tapml_rpc.security.handshake import MONITORED, HandshakeWatch
from tapml_rpc.tracker.route import connect_socket
from tapml_targets.errors import (
    DeviceLostError,
    InputError,
    ProtocolError,
    UnreachableError,
)

DOWNLOAD_WINDOW: Final = 16 << 20
_POLL_MILLISECONDS: Final = 50
# With -1 libzmq would forget what has come before a connection's end and was not taken yet.
_NEVER_MILLISECONDS: Final = 24 * 3600 * 1000

Socket = zmq.Socket[bytes]


def connect_dealer(
    context: zmq.Context[Socket], address: str, curve: ClientCurve | None, *, once: bool = False
) -> tuple[Socket, Socket]:
    """A DEALER that connects to an address, and the monitor that says how that goes.

    Parameters
    ----------
    once
        Whether to have one connection and no other after it: messages wait until it is there.

    Raises
    ------
    InputError
        If the address is none.
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


def say_hello(
    control: Socket,
    handshakes: HandshakeWatch,
    address: str,
    *,
    timeout: float,
    kernel_deadline: float | None,
    lease: str,
    exit_report: Callable[[float], str | None] | None,
) -> wire.Header:
    """Say hello on a control socket and wait for the welcome.

    Parameters
    ----------
    handshakes
        Says, while nothing comes, that nothing will.
    timeout, kernel_deadline, lease, exit_report
        As :class:`tapml_rpc.link.Link` takes them.

    Raises
    ------
    TapmlError
        If the server refuses, or none answers.
    """
    hello: wire.Header = {
        "type": "hello",
        "versions": [wire.VERSION],
        "features": [],
        "download_window": DOWNLOAD_WINDOW,
    }
    if kernel_deadline is not None:
        hello["kernel_deadline"] = kernel_deadline
    if lease:
        hello["lease"] = lease
    packed, sent = wire.pack(hello), False
    deadline = time.monotonic() + timeout
    # libzmq may have given the connection up by now: a send that blocks would do so for ever.
    while not (sent and control.poll(_POLL_MILLISECONDS)):
        if not sent and control.poll(_POLL_MILLISECONDS, zmq.POLLOUT):
            with suppress(zmq.Again):
                control.send(packed, zmq.NOBLOCK)
                sent = True
                continue
        handshakes.check()
        ended = exit_report(0) if exit_report else None
        if ended is not None:
            raise DeviceLostError(f"the server ended before it answered: {ended}")
        if time.monotonic() > deadline:
            raise handshakes.hint or UnreachableError(
                f"no tapml server answers at {address} within {timeout:g} s; "
                "start one there with `tapml rpc serve`"
            )
    reply = wire.unpack(control.recv())
    if reply.get("type") == "refused":
        raise failure_from_wire(reply.get("error"))
    if reply.get("type") != "welcome":
        raise ProtocolError(f"{address} is no tapml server: it sent no welcome")
    return reply
