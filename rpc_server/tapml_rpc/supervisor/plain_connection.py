"""A plain data connection and the sessions whose messages it brings."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from tapml_rpc import wire
from tapml_rpc.security.standing import LOOPBACK_IDENTITY
from tapml_rpc.supervisor.data_service import Desk, error_reply
from tapml_rpc.zmtp.listener import STRANGER_REFUSALS, STRANGER_SECONDS
from tapml_rpc.zmtp.parting import PARTING_SECONDS
from tapml_rpc.zmtp.peer import Peer
from tapml_targets.errors import ProtocolError, TapmlError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.relay import Relay
    from tapml_rpc.supervisor.ring import Room

__all__ = ["STRANGER_REFUSALS", "STRANGER_SECONDS", "PlainConnection", "unpack_short"]


def unpack_short(packed: bytes) -> wire.Header:
    """A header, which is empty where it was too long to be kept.

    Raises
    ------
    ProtocolError
        If it is none.
    """
    if not packed:
        raise ProtocolError(
            f"a header has 1 to {wire.MAX_STRANGER_BYTES} bytes on control, and on a data "
            "connection that has not said yet, by a shorter one, whose it is"
        )
    return wire.unpack(packed)


class PlainConnection:
    """Reads messages and hands them to their sessions, which end with it.

    Parameters
    ----------
    desk
        The front's.
    accepted
        A connected socket; this object's from now on.

    Attributes
    ----------
    peer
        What speaks ZMTP on it.
    """

    def __init__(self, desk: Desk, accepted: socket.socket) -> None:
        self.peer = Peer(accepted, time.monotonic(), self._place)
        self.peer.bound_headers(wire.MAX_STRANGER_BYTES)
        self._desk = desk
        self._relays: list[Relay] = []
        # When it last had a session, or kept no memory.
        self._light = self.peer.opened
        self._refusals = 0
        # Of the message whose chunk is arriving: its header, its room, what is wrong with it.
        self._header: wire.Header | None = None
        self._room: tuple[Relay, Room] | None = None
        self._error: Exception | None = None

    def has_session(self) -> bool:
        """Whether it is the data connection of a session that has not ended."""
        return any(not relay.ended for relay in self._relays)

    def lingers(self, now: float) -> bool:
        """Whether it has kept memory for long that is of use to no session.

        That of one that has ended, for instance, whose chunk was arriving. Where a worker ended
        within a message nothing can follow that: its peer is not kept waiting for more.
        """
        mine = self.has_session()
        if not mine:
            self.peer.bound_headers(wire.MAX_STRANGER_BYTES)
        if mine or not self.peer.holds:
            self._light = now
        return now - self._light > (PARTING_SECONDS if self.peer.muted else STRANGER_SECONDS)

    def take(self) -> bool:
        """Take a message, if one has come.

        Raises
        ------
        EndedError, ProtocolError
            If the peer has gone, or is to be hung up on.
        """
        message = self.peer.next()
        if message is None:
            return False
        packed, chunk, frames = message
        header, self._header = self._header, None
        error, self._error = self._error, None
        room, self._room = self._room, None
        try:
            if error is not None:
                raise error
            if frames > 2:
                if room is not None:
                    room[0].refuse(room[1])
                raise ProtocolError("a message is a header and at most a chunk")
            if header is None:
                header = unpack_short(packed)
            # Again where it brought a chunk: its session may have ended while that was arriving.
            relay = self._claim(header)
            relay.accept(header, packed, chunk if room is None else room[1])
            if len(self._relays) == 1:
                relay.lend_reading(self.peer)
            self._desk.settle(relay)
        except Exception as refused:
            self._refuse(refused, header)
        return True

    def end(self, error: Exception | None = None) -> socket.socket | None:
        """See the protocol; what came over it only half has never come."""
        why, parting = "its data connection is gone", None
        if isinstance(error, ProtocolError):
            why = f"what came over its data connection is against the protocol: {error}"
            self._refuse(error, None)
            parting = self.peer.part()
        self.peer.release()
        # Half a chunk lies in a session's ring, whose memory stays while anybody points into it.
        self._room = None
        for relay in self._relays:
            if not relay.ended:
                relay.give_up(why)
            self._desk.settle(relay)
        self._relays.clear()
        return parting

    def _place(self, packed: bytes, nbytes: int) -> memoryview | None:
        """Memory for a chunk, once its header has come."""
        try:
            self._header = unpack_short(packed)
            relay = self._claim(self._header)
            room = relay.room(self._header, nbytes)
        except Exception as error:
            # It is told once all of the message has come, as for any other.
            self._error = error.with_traceback(None)
            return None
        if room is None:
            return memoryview(bytearray(nbytes))
        self._room = relay, room
        return room.memory

    def _claim(self, header: wire.Header) -> Relay:
        relay, _ = self._desk.claim(header, LOOPBACK_IDENTITY, self.peer)
        if relay not in self._relays:
            self._relays = [each for each in self._relays if not each.ended]
            self._relays.append(relay)
            self.peer.bound_headers(wire.MAX_CHUNK_BYTES)
            if self.peer.turn is None:
                relay.share(self.peer)
        return relay

    def _refuse(self, error: Exception, header: wire.Header | None) -> None:
        """Tell the peer what was wrong with a message; it may be gone, or never read it."""
        if not isinstance(error, TapmlError):
            self._desk.show(error)
        self._refusals = 0 if self.has_session() else self._refusals + 1
        if self._refusals > STRANGER_REFUSALS:
            self.peer.close()
        elif reply := error_reply(error, header):
            self.peer.send(reply)
