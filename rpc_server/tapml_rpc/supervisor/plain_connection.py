"""A plain data connection until its first message says whose it is; then a worker serves it."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from tapml_rpc import wire
from tapml_rpc.connection import EndedError
from tapml_rpc.refusals import error_reply
from tapml_rpc.security.standing import LOOPBACK_IDENTITY
from tapml_rpc.supervisor.data_service import DataFront
from tapml_rpc.zmtp.listener import STRANGER_REFUSALS, STRANGER_SECONDS
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import ProtocolError, TapmlError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.relay import Relay


def unpack_short(packed: bytes) -> wire.Header:
    """Unpack a header (empty if it was too long to be kept); raises ProtocolError if malformed."""
    if not packed:
        raise ProtocolError(
            f"a header has 1 to {wire.MAX_STRANGER_BYTES} bytes on control, and on a data "
            "connection before a shorter one has named its session"
        )
    return wire.unpack(packed)


class PlainConnection:
    """Reads messages until one names a session; see :class:`tapml_rpc.zmtp.listener.Connection`.

    Then the connection goes to that session's worker, with all that has come from that message on.
    It owns the connected socket `accepted`. `peer` speaks ZMTP on it.
    """

    def __init__(self, front: DataFront, accepted: socket.socket) -> None:
        self.peer = Peer(accepted, time.monotonic(), self._place)
        self.peer.bound_headers(wire.MAX_STRANGER_BYTES)
        self._front = front
        # When it last kept no memory.
        self._light = self.peer.opened
        self._refusals = 0
        # Of the message whose chunk is arriving: its header, what is wrong with it.
        self._header: wire.Header | None = None
        self._error: Exception | None = None
        self._relay: Relay | None = None
        self._received = b""

    def has_session(self) -> bool:
        """Never: one that has is a worker's."""
        return False

    def lingers(self, now: float) -> bool:
        """Whether it has kept memory for too long."""
        if not self.peer.holds:
            self._light = now
        return now - self._light > STRANGER_SECONDS

    def take(self) -> bool:
        """Take a message, if one has come.

        Raises EndedError or ProtocolError if the peer has gone, or is to be disconnected; and
        EndedError once the connection is a worker's.
        """
        message = self.peer.next()
        if message is None:
            return False
        packed, _, frames = message
        header, self._header = self._header, None
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            if frames > 2:
                raise ProtocolError("a message is a header and at most a chunk")
            header = unpack_short(packed)
            self._claim(header, packed, None)
        except EndedError:
            raise
        except Exception as refused:
            self._refuse(refused, header)
        return True

    def end(self, error: Exception | None = None) -> socket.socket | None:
        """Give it to the worker of its session, or close it."""
        parting = None
        if self._relay is not None:
            self._relay.connect(self.peer.give_away(), self._received)
            self._front.settle(self._relay)
        elif isinstance(error, ProtocolError):
            self._refuse(error, None)
            parting = self.peer.part()
        self.peer.release()
        return parting

    def _place(self, packed: bytes, nbytes: int) -> memoryview | None:
        """No memory for a chunk: its header says whose the connection is, or it is refused."""
        try:
            self._header = unpack_short(packed)
            self._claim(self._header, packed, nbytes)
        except EndedError:
            raise
        except Exception as error:
            # Reported once the complete message has come, as for any other.
            self._error = error.with_traceback(None)
        return None

    def _claim(self, header: wire.Header, packed: bytes, chunk_bytes: int | None) -> None:
        self._relay, _ = self._front.claim(header, LOOPBACK_IDENTITY, self.peer)
        self._received = self.peer.begun(packed, chunk_bytes)
        raise EndedError("it is a worker's from now on")

    def _refuse(self, error: Exception, header: wire.Header | None) -> None:
        """Report to the peer what was wrong with a message; it may be gone, or never read it."""
        if not isinstance(error, TapmlError):
            self._front.show(error)
        self._refusals += 1
        if self._refusals > STRANGER_REFUSALS:
            self.peer.close()
        elif reply := error_reply(error, header):
            self.peer.send(reply)
