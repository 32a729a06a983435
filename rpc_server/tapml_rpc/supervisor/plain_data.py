"""Connections without encryption: ZMTP on sockets of ours, payloads read straight into a ring.

libzmq would receive a payload on a thread of its own, into memory of its own, from which it would
have to be copied; and it would keep whatever a stranger sends as one message of any length. On the
wire nobody sees a difference.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import Final, Protocol

from tapml_rpc.supervisor.data_service import Desk
from tapml_rpc.supervisor.plain_connection import PlainConnection
from tapml_rpc.zmtp.incoming import EndedError
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import ProtocolError

HANDSHAKE_SECONDS: Final = 3.0
MOST_CONNECTIONS: Final = 256
# Messages taken from a connection before the others get their turn.
_TURN: Final = 8
_BACKLOG: Final = 128


class Connection(Protocol):
    """One that was accepted, as the listener sees it.

    Attributes
    ----------
    peer
        What speaks ZMTP on it.
    """

    peer: Peer

    def has_session(self) -> bool:
        """Whether a session that has not ended hangs on it."""

    def lingers(self, now: float) -> bool:
        """Whether it has kept memory for long that is of use to no session."""

    def take(self) -> bool:
        """Take a message, if one has come; raises what makes it be hung up on."""

    def end(self) -> None:
        """Close it."""


class PlainData:
    """The :class:`~tapml_rpc.supervisor.data_service.DataService` on plain sockets.

    A control service as well, where `accept` makes control connections.

    Parameters
    ----------
    desk, selector
        The front's. A selector's key has, as its data, what is to be called with the events.
    address
        ``tcp://host:port``; port 0 or ``*`` takes a free one.
    accept
        Makes a connection of a socket; None for data connections.

    Raises
    ------
    OSError
        If the address cannot be used.
    """

    def __init__(
        self,
        desk: Desk,
        selector: BaseSelector,
        address: str,
        accept: Callable[[socket.socket], Connection] | None = None,
    ) -> None:
        self._desk = desk
        self._new: Callable[[socket.socket], Connection] = accept or partial(PlainConnection, desk)
        self._selector = selector
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
        # Those with something that has been received and not looked at.
        self._pending: set[Connection] = set()
        self._listens = True
        selector.register(self._listener, EVENT_READ, self._accept)

    def serve(self) -> bool:
        """See the protocol."""
        for connection in list(self._pending):
            self._read(connection)
        return bool(self._pending)

    def check(self, now: float) -> None:
        """Hang up on who does not end its handshake, or keeps memory without a session."""
        if not self._listens:
            self._listens = True
            self._selector.register(self._listener, EVENT_READ, self._accept)
        for connection in list(self._connections):
            peer = connection.peer
            late = not peer.ready and now - peer.opened > HANDSHAKE_SECONDS
            if peer.closed or late or connection.lingers(now):
                self._end(connection)

    def close(self) -> None:
        """See the protocol."""
        if self._listens:
            self._selector.unregister(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            connection.peer.flush()
            self._end(connection)

    def _accept(self, mask: int) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # It has gone again, or there are no descriptors left: others may end until a check.
            self._listens = False
            self._selector.unregister(self._listener)
            return
        if len(self._connections) >= MOST_CONNECTIONS and not self._make_room():
            accepted.close()
            return
        connection = self._new(accepted)
        self._connections[connection] = None
        connection.peer.watch_room = partial(self._watch_room, connection)
        connection.peer.watch_reads = partial(self._watch_reads, connection)
        self._selector.register(connection.peer, EVENT_READ, partial(self._ready, connection))

    def _make_room(self) -> bool:
        """End the oldest connection of no session."""
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
            for _ in range(_TURN):
                if not connection.take():
                    break
        except (EndedError, ProtocolError):
            self._end(connection)
            return
        except Exception as error:
            # A fault of ours must cost the one client, and must be seen.
            self._desk.show(error)
            self._end(connection)
            return
        if connection.peer.pending:
            self._pending.add(connection)

    def _watch_room(self, connection: Connection, waits: bool) -> None:
        """Look whether a peer takes more, or do not."""
        self._watch(connection)

    def _watch_reads(self, connection: Connection) -> None:
        """Read from a connection again, or leave that to a worker."""
        self._pending.discard(connection)
        if connection.peer.reads:
            # It may have been received already.
            self._pending.add(connection)
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        peer = connection.peer
        events = EVENT_READ * peer.reads | EVENT_WRITE * peer.waits_for_room
        with suppress(KeyError, ValueError):
            if not events:
                self._selector.unregister(peer)
            elif peer in self._selector.get_map():
                self._selector.modify(peer, events, partial(self._ready, connection))
            elif connection in self._connections:
                self._selector.register(peer, events, partial(self._ready, connection))

    def _end(self, connection: Connection) -> None:
        self._pending.discard(connection)
        if connection not in self._connections:
            return
        del self._connections[connection]
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.peer)
        connection.end()
