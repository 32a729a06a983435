"""The tracker process: ``python -m tapml_rpc.tracker.process``, or ``tapml rpc tracker``.

One thread serves the ROUTER socket of devices and clients, a second one is the relay. The address
is printed as one JSON line on standard output; everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import secrets
import select
import signal
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from tapml_rpc import wire
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.security.bind import bracketed, check_bind
from tapml_rpc.security.curve import Authenticator, ServerCurve, apply_server, client_identity
from tapml_rpc.tracker.connection import set_heartbeats
from tapml_rpc.tracker.options import TrackerOptions, add_arguments, options_from
from tapml_rpc.tracker.records import MAX_MESSAGE_BYTES, RELAYED, VERSION, Lease, Sender
from tapml_rpc.tracker.registry import Registry
from tapml_rpc.tracker.relay import RelayServer
from tapml_rpc.tracker.waking import Waker
from tapml_targets.errors import ProtocolError, SetupError, TapmlError

_POLL_MILLISECONDS: Final = 100
_MESSAGES_AT_ONCE: Final = 64
_PROBE_SECONDS: Final = 1.0
_STOPPED_SECONDS: Final = 1.0
_GIVEN_BY_US: Final = b"\0"


class TrackerLoop:
    """Serves devices and clients; `run` returns when the tracker shall stop.

    Parameters
    ----------
    curve
        Keys and who is admitted; None for neither, on loopback alone.
    """

    def __init__(self, bind: str, relay_port: int, curve: ServerCurve | None = None) -> None:
        host, port = check_bind(bind, secret=curve is not None, schemes=("tcp",))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._dials: deque[tuple[str, str, str]] = deque()
        self._waker = Waker()
        self._unreachable: set[bytes] = set()
        self._curve = curve
        self._admission: Authenticator | None = None
        self._registry = Registry(self, time.monotonic)
        try:
            self._relay = RelayServer(host, relay_port or (port and port + 1), self._ask_to_dial)
            socket = self._socket
            socket.linger = 0
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.HANDSHAKE_IVL, 3000)
            socket.setsockopt(zmq.RCVHWM, 64)
            socket.setsockopt(zmq.SNDHWM, 256)
            socket.setsockopt(zmq.IPV6, int(":" in host))
            set_heartbeats(socket)
            if curve is not None:
                self._admission = Authenticator(self._context, curve.clients)
            apply_server(socket, curve)
            self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.bind(f"tcp://{bracketed(host)}:{port or '*'}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise SetupError(f"cannot listen on {bind}: {error}") from None
        except SetupError:
            self._context.destroy(linger=0)
            raise
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.relay_port = self._relay.port

    def run(self, stopping: StopRequest) -> None:
        """Serve until told to stop."""
        poller = zmq.Poller()
        for source in (self._socket, self._monitor, self._waker.fileno(), *stopping.wake_fds):
            poller.register(source, zmq.POLLIN)
        looked = probed = time.monotonic()
        try:
            while not stopping.asked():
                poller.poll(_POLL_MILLISECONDS)
                now = time.monotonic()
                if now - looked > _STOPPED_SECONDS:
                    self._registry.excuse(now - looked)
                looked = now
                for _ in range(_MESSAGES_AT_ONCE):
                    if not self._receive():
                        break
                self._waker.drain()
                self._send_dials()
                dropped = self._drain_monitor()
                if dropped or now - probed > _PROBE_SECONDS:
                    probed = now
                    for key in self._registry.peers():
                        self.send(key, {"type": "probe"})
                self._registry.tick()
                self._drop_unreachable()
        finally:
            self._relay.close()
            self._socket.disable_monitor()
            self._socket.close(linger=200)
            if self._admission is not None:
                self._admission.close()
            self._context.destroy(linger=200)

    def send(self, key: bytes, header: wire.Header) -> None:
        """Send without waiting; who cannot be reached, or reads nothing, is dropped soon."""
        if header.get("type") == "granted" and header["address"] == RELAYED:
            header = {**header, "relay_port": self.relay_port}
        try:
            self._socket.send_multipart([key, wire.pack(header)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self._unreachable.add(key)

    def open_relay(self, lease: Lease) -> None:
        """Let the lease's holder through to its device, where it needs that."""
        if lease.device.address == RELAYED:
            self._relay.allow(lease.id, lease.token)

    def close_relay(self, lease: Lease) -> None:
        """Cut what the lease's holder has open."""
        if lease.device.address == RELAYED:
            self._relay.cut(lease.id, lease.token)

    def _receive(self) -> bool:
        try:
            key, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        number = None
        try:
            if len(frames) != 1:
                raise ProtocolError("a message to a tracker is one header")
            if key.bytes[:1] != _GIVEN_BY_US:
                # What hangs on a connection would else be the next one's of the same name.
                raise ProtocolError("a tracker's peer chooses no ZeroMQ routing id of its own")
            header = wire.unpack(frames[0].bytes)
            number = header.get("request")
            self._registry.receive(self._sender(key.bytes, frames[0]), header)
        except Exception as error:
            if not isinstance(error, TapmlError):
                # A fault of ours must cost the one message, and must be seen.
                traceback.print_exc(file=sys.stderr)
            reply: wire.Header = {"type": "refused", "error": failure_to_wire(error)}
            if type(number) is int and 0 <= number <= wire.MAX_INTEGER:
                reply["request"] = number
            self.send(key.bytes, reply)
        return True

    def _sender(self, key: bytes, frame: zmq.Frame) -> Sender:
        return Sender(key, client_identity(frame, self._curve), _host(frame))

    def _ask_to_dial(self, lease_id: str, stream: str, role: str) -> None:
        """Called by the relay on its own thread."""
        self._dials.append((lease_id, stream, role))
        self._waker.wake()

    def _send_dials(self) -> None:
        while self._dials:
            lease_id, stream, role = self._dials.popleft()
            key = self._registry.leases.device_key(lease_id)
            if key is not None:
                dial = {"type": "dial", "lease": lease_id, "stream": stream, "role": role}
                self.send(key, {**dial, "relay_port": self.relay_port})

    def _drain_monitor(self) -> bool:
        dropped = False
        with suppress(zmq.Again):
            while True:
                recv_monitor_message(self._monitor, zmq.NOBLOCK)
                dropped = True
        return dropped

    def _drop_unreachable(self) -> None:
        while self._unreachable:
            key = self._unreachable.pop()
            if key in self._registry.peers():
                self._registry.gone(key, "its connection dropped")
                self._registry.tick()


def _host(frame: zmq.Frame) -> str:
    """Where a message came from; libzmq says so itself, before the peer can."""
    host = str(frame.get("Peer-Address"))
    mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
    return str(mapped or host)


class StopRequest:
    """Signals and the parent's end, as one question."""

    def __init__(self, parent: int) -> None:
        self._asked = False
        self._parent = parent
        # The parent holds the other end of standard input open for as long as it lives.
        self.wake_fds = (0,) if parent else ()
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def asked(self) -> bool:
        """Whether to stop."""
        if self._parent and not self._asked:
            ended = bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)
            self._asked = ended or os.getppid() != self._parent
        return self._asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def run_tracker(options: TrackerOptions) -> int:
    """Track devices until a signal, or until the parent is gone. Returns the exit code.

    Raises
    ------
    SetupError
        If an address cannot be used, or would be open to anybody.
    InputError
        If a file of keys cannot be used.
    """
    stopping = StopRequest(options.parent)
    curve = None
    if options.key:
        clients = Path(options.clients) if options.clients else None
        curve = ServerCurve.from_files(Path(options.key), clients)
    loop = TrackerLoop(options.bind, options.relay_port, curve)
    line = {
        "address": loop.address,
        "relay_port": loop.relay_port,
        "key": curve.keys.public if curve is not None else "",
        "epoch": secrets.token_hex(8),
        "pid": os.getpid(),
        "protocol": VERSION,
    }
    print(json.dumps(line), flush=True)
    loop.run(stopping)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``python -m tapml_rpc.tracker.process``."""
    parser = argparse.ArgumentParser(prog="tapml_rpc.tracker", description=__doc__)
    add_arguments(parser)
    try:
        return run_tracker(options_from(parser.parse_args(arguments)))
    except TapmlError as error:
        print(f"tapml_rpc.tracker: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
