"""The client's way to a session over ZeroMQ: control socket, hello, data connection."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final
from weakref import finalize

import zmq

from tapml_rpc import wire
from tapml_rpc.link import Link
from tapml_rpc.loss import Held, held, token_of
from tapml_rpc.security.curve import ClientCurve
from tapml_rpc.security.handshake import HandshakeWatch
from tapml_rpc.tracker.route import data_address_beside, is_relayed
from tapml_rpc.unanswered import Unanswered
from tapml_rpc.watch import Describe
from tapml_rpc.welcome import Welcome, hello
from tapml_rpc.zeromq.data import DealerData, open_encrypted, open_plain
from tapml_rpc.zeromq.dealer import Socket, connect_dealer
from tapml_rpc.zeromq.watch import ZeroMQWatch
from tapml_rpc.zmtp.stream import Stream
from tapml_targets.errors import UnreachableError

_POLL_MILLISECONDS: Final = 50


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
    context: zmq.Context[Socket] = zmq.Context()
    data: Stream | DealerData | None = None
    try:
        control, *monitors = connect_dealer(context, address, curve)
        sockets = [control, *monitors]
        packed = greet(
            control,
            HandshakeWatch(monitors[0], address, curve),
            address,
            wire.pack(hello(kernel_deadline, token_of(lease))),
            timeout=timeout,
        )
        welcome = Welcome.from_wire(packed, address)
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
            address,
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
    control: Socket,
    handshakes: HandshakeWatch,
    address: str,
    packed: bytes,
    *,
    timeout: float,
) -> bytes:
    """Send a hello on a control socket and wait for the answer; raises TapmlError if none comes.

    `handshakes` raises once an answer can no longer come.
    """
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
    """End what a session leaves that was lost and not closed.

    The garbage collector ends things in any order, and a context that ends first waits for its
    sockets.
    """
    for each in sockets:
        each.close(linger=0)
    context.destroy(linger=0)


def _same_host(data_address: str, control_address: str) -> str:
    """The data socket's address as this side reaches it: the host we connected to, its port."""
    if is_relayed(control_address):
        return data_address_beside(control_address)
    host = control_address.rpartition(":")[0]
    return f"{host}:{data_address.rpartition(':')[2]}"
