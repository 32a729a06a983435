"""The control thread: hello, heartbeats, cancellation, deadlines - never behind a payload.

It runs while a kernel hangs, and ends the process when one exceeds its deadline: a running kernel
cannot be stopped any other way.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any, Final

import zmq

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.command_clock import Running
from tapml_rpc.device_loop import DeviceLoop
from tapml_rpc.failures import failure_to_wire, render_command
from tapml_rpc.features import FEATURES
from tapml_rpc.router import GONE, bind_router, split, take, unpack_control
from tapml_rpc.running_batch import place_in
from tapml_rpc.server_session import TOKEN_BYTES, ServerSession
from tapml_targets.description import to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import (
    DeviceLostError,
    KernelTimeoutError,
    ProtocolError,
    SetupError,
    TapmlError,
)
from tapml_targets.installed import package_version

EXIT_KERNEL_DEADLINE: Final = 70
_POLL_MILLISECONDS: Final = 100
_PROBE_SECONDS: Final = 1.0
# Compiling kernels is slow on small boards, and is not a hang.
_LOAD_DEADLINE_FACTOR: Final = 10
_MAX_DEADLINE_SECONDS: Final = 86400


class ControlLoop:
    """Serves the control socket. `run` returns when the server should stop.

    A session whose client sends nothing for `silence_seconds` is ended, 0 for never; a client whose
    connection is gone is noticed within a few seconds in any case. One command may run for
    `kernel_deadline` seconds; a client may ask for less. If the server is for one client only, a
    hello must contain `lease`.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        device: DeviceDescription,
        loop: DeviceLoop,
        sessions: dict[bytes, ServerSession],
        epoch: bytes,
        bounds: Bounds,
        silence_seconds: float,
        kernel_deadline: float,
        lease: str = "",
    ) -> None:
        self._lease = lease.encode()
        self._device = to_plain(device)
        self._loop = loop
        self._sessions = sessions
        self._epoch = epoch
        self._bounds = bounds
        self._silence_seconds = silence_seconds
        self._kernel_deadline = kernel_deadline
        self._next_probe = 0.0
        self._socket, self._watch = bind_router(context, address, bounds, silence_seconds > 0)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self, should_stop: Callable[[], bool], wake_fds: tuple[int, ...] = ()) -> None:
        """Serve until `should_stop` returns true; a readable `wake_fds` makes it check."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        for fd in wake_fds:
            poller.register(fd, zmq.POLLIN)
        try:
            while not should_stop():
                for ready, _ in poller.poll(_POLL_MILLISECONDS):
                    if ready is self._socket:
                        self._receive()
                self._check_deadline()
                self._check_silence()
                self._check_connections()
        finally:
            self._watch.close()
            self._socket.close(linger=200)

    def _receive(self) -> None:
        frames = take(self._socket)
        if frames is None:
            return
        self._watch.heard(frames[0])
        identity = frames[0].bytes
        try:
            _, packed, chunk = split(frames)
            if chunk:
                raise ProtocolError("a control message is one header")
            self._dispatch(identity, unpack_control(packed))
        except Exception as error:
            if not isinstance(error, TapmlError):
                # An internal fault must cost only the one message, and must be seen.
                traceback.print_exc()
            self._refuse(identity, error)

    def _dispatch(self, identity: bytes, header: wire.Header) -> None:
        kind = header.get("type")
        if kind == "hello":
            self._hello(identity, header)
            return
        token = wire.octets(header.get("session"), "session", 64)
        session = self._sessions.get(token)
        if session is None or session.ended:
            raise self._loop.lost(token)
        session.heard = time.monotonic()
        if kind == "ping":
            self._send(identity, self._pong(session, header))
        elif kind == "cancel":
            session.cancel_through = max(
                session.cancel_through, wire.integer(header.get("sequence"), "sequence")
            )
        elif kind == "goodbye":
            self._end(session, "closed by the client")
        else:
            raise ProtocolError(f"unknown control message {str(kind)[:60]!r}")

    def _hello(self, identity: bytes, header: wire.Header) -> None:
        # A connection has one session: no client can fill the server from a single one.
        self._end_of({identity}, "its client began another on the same connection")
        versions = wire.array(header.get("versions"), "versions", 64)
        if wire.VERSION not in versions:
            raise ProtocolError(
                f"this server speaks protocol version {wire.VERSION}, the client {versions}; "
                "bring both to the same release of tapml"
            )
        given = wire.text(header.get("lease", ""), "lease").encode(errors="replace")
        if self._lease and not hmac.compare_digest(given, self._lease):
            raise SetupError("this server serves only the process that started it")
        if not self._has_room():
            raise SetupError(
                f"all {self._bounds.sessions} sessions of this server are taken; "
                "close one or try again later"
            )
        asked = header.get("kernel_deadline")
        deadline = self._kernel_deadline
        if isinstance(asked, int | float) and 0 < asked <= _MAX_DEADLINE_SECONDS:
            deadline = min(deadline, float(asked))
        session = ServerSession(
            token=secrets.token_bytes(TOKEN_BYTES),
            control_identity=identity,
            download_credit=min(
                wire.integer(header.get("download_window"), "download window"),
                self._bounds.download_window,
            ),
            kernel_deadline=deadline,
        )
        self._sessions[session.token] = session
        self._send(
            identity,
            {
                "type": "welcome",
                "version": wire.VERSION,
                "features": list(FEATURES),
                "server": f"tapml {package_version('tapml') or 'from source'}",
                "device": self._device,
                "bounds": self._bounds.to_wire(),
                "epoch": self._epoch,
                "session": session.token,
                "data_address": self._loop.address,
                "kernel_deadline": deadline,
                "silence_seconds": self._silence_seconds,
            },
        )

    def _has_room(self) -> bool:
        """Whether another session fits; those whose connection is gone make room at once."""
        alive = [session for session in list(self._sessions.values()) if not session.ended]
        if len(alive) >= self._bounds.sessions:
            self._drop_gone(alive)
        return sum(not session.ended for session in alive) < self._bounds.sessions

    def _drop_gone(self, sessions: list[ServerSession]) -> None:
        for session in sessions:
            if not self._send(session.control_identity, {"type": "probe"}):
                self._end(session, "its connection is gone")

    def _pong(self, session: ServerSession, header: wire.Header) -> wire.Header:
        running = self._loop.clock.running
        pong: wire.Header = {
            "type": "pong",
            "sequence": wire.integer(header.get("sequence"), "sequence"),
            "answered": session.answered,
            "sessions": len(self._sessions),
            "device_bytes": sum(other.nbytes for other in list(self._sessions.values())),
        }
        if running is not None:
            pong["busy_seconds"] = round(time.monotonic() - running[2], 3)
            if running[0] is session:
                pong["command"] = _shown(running)
        return pong

    def _check_deadline(self) -> None:
        running = self._loop.clock.running
        if running is None:
            return
        session, command, started, _ = running
        deadline = session.kernel_deadline
        if isinstance(command, list) and command[0] == "load":
            deadline *= _LOAD_DEADLINE_FACTOR
        if time.monotonic() - started <= deadline:
            return
        shown = _shown(running)
        error = KernelTimeoutError(
            f"the device has not finished after {deadline:g} s, in {shown}; the server ends. "
            "A kernel loops for ever, or needs a longer deadline"
        )
        failure = failure_to_wire(error, shown)
        failure["traceback"] = _device_stack()
        for other in list(self._sessions.values()):
            event: wire.Header = {"type": "event", "error": failure}
            if other is not session:
                event["error"] = {
                    **failure,
                    "kind": "DeviceLostError",
                    "message": "another session's kernel was over its deadline; the server ends",
                }
            self._send(other.control_identity, event)
        print(f"tapml_rpc.server: {error}", file=sys.stderr, flush=True)
        # The data socket's thread hangs, so the context cannot end; give the event time to leave.
        time.sleep(0.3)
        os._exit(EXIT_KERNEL_DEADLINE)

    def _check_silence(self) -> None:
        now = time.monotonic()
        if now < self._next_probe:
            return
        self._next_probe = now + _PROBE_SECONDS
        for session in list(self._sessions.values()):
            silence = now - session.heard
            if 0 < self._silence_seconds < silence:
                self._end(session, f"silent for {silence:.0f} s")
            elif silence > 2 * _PROBE_SECONDS:
                self._drop_gone([session])

    def _check_connections(self) -> None:
        """End the sessions without a control connection, notify those without a data connection."""
        if gone := self._watch.gone():
            self._end_of(gone, f"its control connection {GONE}")
        while self._loop.dropped:
            session = self._loop.dropped.popleft()
            error = DeviceLostError(f"this session was ended: {session.ended}")
            event: wire.Header = {"type": "event", "error": failure_to_wire(error)}
            self._send(session.control_identity, event)

    def _end_of(self, identities: Container[bytes], why: str) -> None:
        for session in list(self._sessions.values()):
            if session.control_identity in identities:
                self._end(session, why)

    def _end(self, session: ServerSession, why: str) -> None:
        if not session.ended:
            session.ended = why
            self._loop.ended.append(session)

    def _send(self, identity: bytes, header: wire.Header) -> bool:
        """Send without waiting; False if the peer's connection is gone or takes nothing."""
        try:
            self._socket.send_multipart([identity, wire.pack(header)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _refuse(self, identity: bytes, error: Exception) -> None:
        with suppress(ProtocolError):
            self._send(identity, {"type": "refused", "error": failure_to_wire(error)})


def _shown(running: Running) -> str:
    inner = place_in(running[3])[1]
    shown = render_command(running[1])
    return shown if inner < 0 else f"{shown}, command {inner} of a program"


def _device_stack() -> str:
    for thread in threading.enumerate():
        if thread.name == "tapml-device" and thread.ident is not None:
            frame: Any = sys._current_frames().get(thread.ident)
            if frame is not None:
                return "".join(traceback.format_stack(frame))
    return ""
