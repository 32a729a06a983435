"""Connections without encryption: ZMTP on our own sockets, on the thread that polls them.

libzmq would receive a payload on its own thread into its own memory, from which it would have to be
copied, and would keep a message of any length from an unknown peer. The bytes on the wire are the
same.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import Final, Protocol

from tapml_rpc.connection import EndedError
from tapml_rpc.zmtp.parting import Partings
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import ProtocolError

HANDSHAKE_SECONDS: Final = 3.0
MOST_CONNECTIONS: Final = 256
# How often a connection without a session is refused something: two bytes are a message, and must
# be answered. And how many seconds it may keep memory here.
STRANGER_REFUSALS: Final = 256
STRANGER_SECONDS: Final = 30.0
MESSAGES_AT_ONCE: Final = 8
_BACKLOG: Final = 128
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class Connection(Protocol):
    """An accepted connection, as the listener sees it. `peer` speaks ZMTP on it."""

    peer: Peer

    def has_session(self) -> bool:
        """Whether a session would end with it."""

    def lingers(self, now: float) -> bool:
        """Whether it has long kept memory that no session uses."""

    def take(self) -> bool:
        """Take a message, if one has come; raises an error for which it is disconnected."""

    def end(self, error: Exception | None = None) -> socket.socket | None:
        """Close it, after sending its peer an error that the peer has made.

        Returns the socket if the peer still has to read that.
        """


class Listener:
    """Accepts connections, and has each of them read and written when it can be.

    For a supervisor it is a :class:`tapml_rpc.supervisor.data_service.DataService`, of data or of
    control connections. A selector key's data is called with the events. In `address` the port 0 or
    ``*`` takes a free one. `accept` makes a connection of a socket; `show` takes an internal fault.
    One more than `most` connections replaces the oldest without a session; `at_once` messages are
    taken from one before the others get their turn. Raises OSError if the address cannot be used.
    """

    def __init__(
        self,
        selector: BaseSelector,
        address: str,
        accept: Callable[[socket.socket], Connection],
        show: Callable[[Exception], None],
        *,
        most: int = MOST_CONNECTIONS,
        at_once: int = MESSAGES_AT_ONCE,
    ) -> None:
        self._selector = selector
        self._new = accept
        self._show = show
        self._most = most
        self._at_once = at_once
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        host = host.strip("[]")
        family, _, _, _, where = socket.getaddrinfo(
            host, 0 if port == "*" else int(port), type=socket.SOCK_STREAM
        )[0]
        self._listener = socket.create_server(where[:2], family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        host, port = self._listener.getsockname()[:2]
        self.address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._connections: dict[Connection, None] = {}
        # Those with received bytes that were not parsed yet.
        self._pending: set[Connection] = set()
        self._partings = Partings(selector)
        self._listens = True
        selector.register(self._listener, EVENT_READ, self._accept)

    def serve(self) -> bool:
        """Handle received bytes that were not parsed; True if there are more."""
        for connection in list(self._pending):
            self._read(connection)
        return bool(self._pending)

    def check(self, now: float) -> None:
        """Disconnect peers that do not finish their handshake, or keep memory without use."""
        if not self._listens:
            self._listens = True
            self._selector.register(self._listener, EVENT_READ, self._accept)
        for connection in list(self._connections):
            peer = connection.peer
            late = not peer.ready and now - peer.opened > HANDSHAKE_SECONDS
            if peer.closed or late or connection.lingers(now):
                self._end(connection)
        self._partings.check(now)

    def close(self) -> None:
        """End all connections."""
        if self._listens:
            self._selector.unregister(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            connection.peer.flush()
            self._end(connection)
        self._partings.close()

    def _accept(self, mask: int) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # It has gone again, or no descriptors are left: others may end before the next check.
            if error.errno not in _NO_DESCRIPTORS or not self._make_room():
                self._listens = False
                self._selector.unregister(self._listener)
            return
        if len(self._connections) >= self._most and not self._make_room():
            accepted.close()
            return
        try:
            connection = self._new(accepted)
        except OSError:
            # It has gone again.
            accepted.close()
            return
        self._connections[connection] = None
        connection.peer.watch_room = partial(self._watch_room, connection)
        self._selector.register(connection.peer, EVENT_READ, partial(self._ready, connection))

    def _make_room(self) -> bool:
        for connection in self._connections:
            if not connection.has_session():
                self._end(connection)
                return True
        return False

    def _ready(self, connection: Connection, mask: int) -> None:
        if mask & EVENT_WRITE:
            connection.peer.flush()
        if mask & EVENT_READ:
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        self._pending.discard(connection)
        try:
            for _ in range(self._at_once):
                if not connection.take():
                    break
        except (EndedError, ProtocolError) as error:
            self._end(connection, error)
            return
        except Exception as error:
            # An internal fault must cost only this client, and must be seen.
            self._show(error)
            self._end(connection)
            return
        if connection.peer.pending:
            self._pending.add(connection)

    def _watch_room(self, connection: Connection, waits: bool) -> None:
        """Watch whether a peer takes more, or stop watching."""
        events = EVENT_READ | EVENT_WRITE * waits
        with suppress(KeyError, ValueError):
            self._selector.modify(connection.peer, events, partial(self._ready, connection))

    def _end(self, connection: Connection, error: Exception | None = None) -> None:
        self._pending.discard(connection)
        if connection not in self._connections:
            return
        del self._connections[connection]
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.peer)
        parting = connection.end(error if connection.peer.ready else None)
        if parting is not None:
            self._partings.add(parting)
