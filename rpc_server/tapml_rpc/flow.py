"""The loop of every server: connections accepted, descriptors watched, bytes forwarded.

Bytes between two endpoints are not interpreted here. A flow reads from one endpoint only while it
holds nothing for the other, so a slow side slows the other one by the endpoint's own means (a TCP
window), and a flow holds at most one buffer each way.

An endpoint is anything with a descriptor that can be polled, such as a non-blocking TCP socket, or
a WebSocket that changes its frames (:mod:`tapml_rpc.websocket.endpoint`).
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from tapml_rpc.standard_error import print_fault, say
from tapml_rpc.waking import Waker

RECEIVE_BYTES: Final = 32 << 10
"""More than a TLS record holds: nothing remains where no poll sees it."""
_RECORD_BYTES: Final = 16 << 10
_MOST_PARTS: Final = 64
_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def receive(connection: socket.socket) -> bytes | None:
    """Received bytes; None for nothing, empty at the end. Raises OSError for a lost connection."""
    try:
        return connection.recv(RECEIVE_BYTES)
    except _NOT_NOW:
        return None


def receive_into(connection: socket.socket, memory: memoryview) -> int | None:
    """How many bytes were received into `memory`; otherwise as :func:`receive`.

    A TLS connection is read while a whole record has room: no poll would see a part of one that
    stays inside the TLS layer.
    """
    filled, encrypted = 0, isinstance(connection, ssl.SSLSocket)
    try:
        while not filled or (encrypted and len(memory) - filled >= _RECORD_BYTES):
            count = connection.recv_into(memory[filled:])
            if not count:
                break
            filled += count
    except _NOT_NOW:
        return filled or None
    return filled


def send(connection: socket.socket, data: bytes | bytearray | memoryview) -> int:
    """How much of `data` was taken; 0 if there is no room. Raises as :func:`receive` does."""
    try:
        return connection.send(data)
    except _NOT_NOW:
        return 0


def send_parts(connection: socket.socket, parts: list[memoryview]) -> int:
    """Send the beginning of `parts`, and take it off them; how much. Raises as :func:`receive`."""
    if isinstance(connection, ssl.SSLSocket):
        taken = send(connection, parts[0])
    else:
        try:
            taken = connection.sendmsg(parts[:_MOST_PARTS])
        except _NOT_NOW:
            return 0
    left = taken
    while parts and left >= len(parts[0]):
        left -= len(parts.pop(0))
    if left:
        parts[0] = parts[0][left:]
    return taken


BUFFER_BYTES: Final = 512 << 10
_MEMORY_BYTES: Final = 256 << 10
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Endpoint(Protocol):
    """One side of a flow; every method may raise OSError if it has ended."""

    def fileno(self) -> int:
        """What to poll."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read into `buffer`; 0 at the end. Raises BlockingIOError for nothing."""

    def send(self, data: memoryview, /) -> int:
        """Send the beginning of `data`; how much. Raises BlockingIOError if there is no room."""

    def close(self) -> None:
        """End it."""


class _Direction:
    """What one endpoint sends to the other."""

    def __init__(self, source: Endpoint, target: Endpoint) -> None:
        self.source = source
        self.target = target
        self.ended = False
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._stop = 0

    @property
    def held(self) -> int:
        """Bytes read and not yet taken."""
        return self._stop - self._start

    def move(self) -> None:
        """Read if nothing is held, then write what is."""
        if not self.held and not self.ended:
            try:
                self._start, self._stop = 0, self.source.recv_into(self._buffer)
            except BlockingIOError:
                return
            self.ended = not self._stop
        if self.held:
            with suppress(BlockingIOError):
                taken = self.target.send(self._buffer[self._start : self._stop])
                self._start += taken


class Flow:
    """Two endpoints joined until one of them ends; what it sent last still goes to the other."""

    def __init__(self, one: Endpoint, other: Endpoint) -> None:
        self.endpoints = (one, other)
        self.ended = False
        self._ways = (_Direction(one, other), _Direction(other, one))

    def interest(self, endpoint: Endpoint) -> int:
        """What to poll an endpoint for: reading, writing, both, or nothing."""
        outward, inward = self._ways if endpoint is self.endpoints[0] else self._ways[::-1]
        reading = _READ if not outward.held and not outward.ended else 0
        return reading | (_WRITE if inward.held else 0)

    def move(self, endpoint: Endpoint, events: int) -> None:
        """Forward what an endpoint is ready for."""
        outward, inward = self._ways if endpoint is self.endpoints[0] else self._ways[::-1]
        try:
            if events & _READ:
                outward.move()
            if events & _WRITE:
                inward.move()
        except OSError:
            self.ended = True
        self.ended = self.ended or any(way.ended and not way.held for way in self._ways)

    def close(self) -> None:
        """End both endpoints."""
        self.ended = True
        for endpoint in self.endpoints:
            with suppress(OSError):
                endpoint.close()


class Forwarder:
    """Runs flows and other descriptor callbacks on one thread: the caller of `step`."""

    def __init__(self) -> None:
        self.flows: set[Flow] = set()
        # What connections of this thread receive into, one at a time.
        self.memory = memoryview(bytearray(_MEMORY_BYTES))
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._waker = Waker()
        self.watch(self._waker.fileno(), _READ, lambda events: self._waker.drain())

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the forwarder's thread; callable from any thread."""
        self._posted.append(action)
        self._waker.wake()

    def watch(self, endpoint: Endpoint | int, events: int, ready: Callable[[int], None]) -> None:
        """Call `ready` with the events of a descriptor, until it is forgotten."""
        self._selector.register(endpoint, events, ready)

    def rewatch(self, endpoint: Endpoint | int, events: int, ready: Callable[[int], None]) -> None:
        """Watch it for other events."""
        self.forget(endpoint)
        self.watch(endpoint, events, ready)

    def forget(self, endpoint: Endpoint | int) -> None:
        """Stop watching a descriptor; call it before that is closed."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(endpoint)

    def add(self, flow: Flow) -> None:
        """Forward between a flow's endpoints until one ends."""
        self.flows.add(flow)
        self._settle(flow)

    def end(self, flow: Flow) -> None:
        """End a flow now."""
        self.flows.discard(flow)
        for endpoint in flow.endpoints:
            self.forget(endpoint)
        flow.close()

    def step(self, timeout: float) -> None:
        """Wait at most `timeout` seconds and forward what can be."""
        try:
            for key, events in self._selector.select(timeout):
                # An earlier one of this round may have ended this one.
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)
        finally:
            # One that fails again and again must not keep these waiting.
            while self._posted:
                self._posted.popleft()()

    def run(self, ended: Callable[[], bool], timeout: float = 0.05) -> None:
        """Step until `ended`; a fault must not end every other connection, and must be seen."""
        while True:
            try:
                if ended():
                    return
                self.step(timeout)
            except Exception as error:
                print_fault(error)

    def close(self) -> None:
        """End everything."""
        for flow in list(self.flows):
            self.end(flow)
        self._selector.close()
        self._waker.close()

    def _settle(self, flow: Flow) -> None:
        for endpoint in flow.endpoints:
            self.forget(endpoint)
            events = flow.interest(endpoint)
            if events:
                self._selector.register(endpoint, events, self._mover(flow, endpoint))

    def _mover(self, flow: Flow, endpoint: Endpoint) -> Callable[[int], None]:
        def move(events: int) -> None:
            before = [flow.interest(each) for each in flow.endpoints]
            flow.move(endpoint, events)
            if flow.ended:
                self.end(flow)
            elif before != [flow.interest(each) for each in flow.endpoints]:
                self._settle(flow)

        return move


_AT_ONCE: Final = 64
_REST_SECONDS: Final = 1.0


class Acceptor:
    """Accepts connections for `greet`, with their addresses, on a listening socket that it owns."""

    def __init__(
        self,
        forwarder: Forwarder,
        listener: socket.socket,
        greet: Callable[[socket.socket, Any], None],
    ) -> None:
        self._forwarder = forwarder
        self._listener = listener
        self._greet = greet
        self._rests_until = 0.0
        self._said = False
        self._watch()

    def look(self, now: float) -> None:
        """Accept again after a pause; call it a few times a second."""
        if self._rests_until and now > self._rests_until:
            self._rests_until = 0.0
            self._watch()

    def close(self) -> None:
        """Stop listening."""
        self._forwarder.forget(self._listener)
        self._listener.close()

    def _watch(self) -> None:
        self._forwarder.watch(self._listener, _READ, self._ready)

    def _ready(self, events: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                self._said = False
                return
            except ConnectionError:
                # It left before it was accepted.
                continue
            except OSError as error:
                # Waiting connections stay ready to be accepted: the thread would do nothing but
                # fail.
                self._forwarder.forget(self._listener)
                self._rests_until = time.monotonic() + _REST_SECONDS
                if not self._said:
                    self._said = True
                    text = "new connections wait until others have ended"
                    say(f"cannot accept: {error}; {text}")
                return
            self._greet(connection, address)
