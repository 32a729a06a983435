"""Connections without encryption: ZMTP on sockets of ours, on the thread of whoever polls them.

libzmq would receive a payload on a thread of its own, into memory of its own, from which it would
have to be copied; and it would keep whatever a stranger sends as one message of any length. On the
wire nobody sees a difference.
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
# How often a connection on which nothing hangs is refused something: two bytes are a message, and
# have to be answered. And how long it may keep memory here.
STRANGER_REFUSALS: Final = 256
STRANGER_SECONDS: Final = 30.0
MESSAGES_AT_ONCE: Final = 8
_BACKLOG: Final = 128
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class Connection(Protocol):
    """One that was accepted, as the listener sees it.

    Attributes
    ----------
    peer
        What speaks ZMTP on it.
    """

    peer: Peer

    def has_session(self) -> bool:
        """Whether something hangs on it that would end with it, such as a session."""

    def lingers(self, now: float) -> bool:
        """Whether it has kept memory for long that is of use to nobody."""

    def take(self) -> bool:
        """Take a message, if one has come; raises what makes it be hung up on."""

    def end(self, error: Exception | None = None) -> socket.socket | None:
        """Close it; its peer is told of an error that it has made itself.

        Then the socket is left, where the peer has to hear that yet.
        """


class Listener:
    """Accepts connections, and has each of them read and written when it can be.

    For a supervisor it is a :class:`tapml_rpc.supervisor.data_service.DataService`, of data or of
    control connections.

    Parameters
    ----------
    selector
        A key's data is called with the events.
    address
        ``tcp://host:port``; port 0 or ``*`` takes a free one.
    accept
        Makes a connection of a socket.
    show
        Takes a fault that is ours and no peer's.
    most
        Connections at a time; one more takes the place of the oldest on which nothing hangs.
    at_once
        Messages taken from a connection before the others get their turn.

    Attributes
    ----------
    address
        Where it listens.

    Raises
    ------
    OSError
        If the address cannot be used.
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
        # Those with something that has been received and not looked at.
        self._pending: set[Connection] = set()
        self._partings = Partings(selector)
        self._listens = True
        selector.register(self._listener, EVENT_READ, self._accept)

    def serve(self) -> bool:
        """Read what was received and not looked at; True where there is more of it."""
        for connection in list(self._pending):
            self._read(connection)
        return bool(self._pending)

    def check(self, now: float) -> None:
        """Hang up on who does not end its handshake, or keeps memory to no end."""
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
            # It has gone again, or there are no descriptors left: others may end until a check.
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
        connection.peer.watch_reads = partial(self._watch_reads, connection)
        self._selector.register(connection.peer, EVENT_READ, partial(self._ready, connection))

    def _make_room(self) -> bool:
        """End the oldest connection on which nothing hangs."""
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
            # A fault of ours must cost the one client, and must be seen.
            self._show(error)
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
