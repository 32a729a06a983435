"""A client's data connection that its session's worker may send on as well: the supervisor's side.

What the supervisor guards stays with it. It alone reads, so that frames, windows, turns and blobs
are its own; the worker sends what its batches give, and leaves word of it.
"""

from __future__ import annotations

from typing import Final

from tapml_rpc import wire
from tapml_rpc.supervisor.gate import Gate
from tapml_rpc.supervisor.pipe import NOWHERE, Pipe
from tapml_rpc.supervisor.ring import make_memory
from tapml_rpc.zmtp.peer import Peer

# What a worker is told of the descriptors that come along.
LINE: Final = "line"
GATE: Final = "gate"
# The place of what says that the worker has sent something, and that it is the supervisor's turn.
SENT: Final = NOWHERE - 1


class SharedLine:
    """One session's; nothing is shared before :meth:`open`.

    To the connection it is a :class:`tapml_rpc.zmtp.peer.Turn`.
    """

    def __init__(self) -> None:
        # How many of the worker's messages have left by way of the supervisor.
        self._passed = 0
        self._peer: Peer | None = None
        self._gate: Gate | None = None
        self._noticed = -1

    def open(self, peer: Peer, pipe: Pipe) -> None:
        """Give a worker its ends of the socket and of the gate, if there are descriptors for it."""
        try:
            gate = Gate(make_memory(0, "gate"))
        except OSError:
            return
        gate.passed = self._passed
        if not gate.enter():
            # A system without such locks.
            gate.close()
            return
        gate.leave()
        try:
            pipe.send(wire.pack({"type": LINE}), descriptor=peer.fileno())
            pipe.send(wire.pack({"type": GATE}), descriptor=gate.descriptor)
        except OSError:
            # A worker that has one of them alone shares nothing.
            gate.close()
            return
        self._peer, self._gate = peer, gate
        peer.turn = self

    def begin(self) -> bool:
        """See the protocol."""
        gate = self._gate
        if gate is None or gate.enter():
            may = True
        else:
            # Said first, then tried again: a worker that ends its message in between looks for it.
            gate.wanted = True
            may = gate.enter()
        if may and gate is not None:
            gate.wanted = False
            # Entered, and yet halfway: the worker has died within its message. Nothing is to follow
            # that, though nobody has noticed yet.
            may = not gate.halfway
        return may

    def end(self) -> None:
        """See the protocol."""
        # Not after the session: its worker may be about to send.
        if self._gate is not None and self._peer is not None:
            self._gate.leave()

    def forget(self) -> None:
        """See the protocol."""
        gate, self._gate, self._peer = self._gate, None, None
        if gate is not None:
            gate.close()

    def count_passed(self) -> None:
        """A message of the worker has left: after all of them it may send by itself."""
        self._passed += 1
        if self._gate is not None:
            self._gate.passed = self._passed

    def newly_answered(self) -> int | None:
        """The last batch that the worker has answered by itself, once."""
        answered = self._noticed if self._gate is None else self._gate.answered
        if answered <= self._noticed:
            return None
        self._noticed = answered
        return answered

    @property
    def halfway(self) -> bool:
        """Whether the worker is sending a message, or has been stopped over one."""
        return self._gate is not None and self._gate.halfway

    def settle(self) -> None:
        """Send what waited for the worker to end a message."""
        if self._peer is not None:
            self._peer.settle()

    def close(self) -> None:
        """The session has ended, and its worker ends or has died, perhaps within a message.

        It sends nothing from now on: the gate stays shut as long as there is the connection.
        """
        gate, peer, self._peer = self._gate, self._peer, None
        if gate is not None and peer is not None and (not gate.enter() or gate.halfway):
            peer.mute()
