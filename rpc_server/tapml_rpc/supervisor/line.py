"""A worker's own way to its client: results go from where they lie into the client's socket.

By way of the supervisor every byte would be copied once more and wait for two more processes. The
supervisor reads what the client sends, and sends whatever it likes; see
:mod:`tapml_rpc.supervisor.gate` for who sends when.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from typing import Final

from tapml_rpc.supervisor.gate import Gate
from tapml_rpc.zmtp.framing import message_parts

# Systems take 1024 at once; a batch may have thousands of small reads.
_MOST_PARTS: Final = 64


class Line:
    """Sends messages on the data connection of a session.

    Parameters
    ----------
    connection
        The socket, which does not wait; this object's from now on.
    gate
        The worker's end.
    supervisor
        What is readable at an end when the supervisor has let go of this process.
    waits
        Told that the client takes nothing for the moment, and that it does again.
    """

    def __init__(
        self,
        connection: socket.socket,
        gate: Gate,
        supervisor: int,
        waits: Callable[[bool], None],
    ) -> None:
        self._socket = connection
        self._gate = gate
        self._waits = waits
        self._poll = select.poll()
        self._poll.register(connection, select.POLLOUT)
        # Of this one nothing is asked, and its end is told.
        self._poll.register(supervisor, 0)
        self._supervisor = supervisor
        self._gone = False

    def is_free(self, handed_over: int) -> bool:
        """Whether a message may go this way now.

        Parameters
        ----------
        handed_over
            How many have gone by way of the supervisor: none of them is to be overtaken.
        """
        gate = self._gate
        return not self._gone and gate.passed == handed_over and not gate.wanted

    def send(
        self,
        messages: Sequence[tuple[bytes, Sequence[memoryview | bytes]]],
        answers: int | None = None,
    ) -> bool:
        """Send messages, waiting for the client to take them; False where it is not our turn.

        Parameters
        ----------
        messages
            Each its header, and the parts of its chunk.
        answers
            The batch that the last of them answers. The supervisor can read so before the client
            can, whose next batch may be there at once.

        Nobody is told where the client has gone: the supervisor finds that out.

        Raises
        ------
        ConnectionError
            If the supervisor has ended the session.
        """
        gate = self._gate
        if not gate.enter():
            return False
        gate.halfway = True
        if answers is not None:
            gate.answered = answers
        try:
            self._send_all([part for message in messages for part in message_parts(*message)])
        except _EndedError:
            self._gone = True
            raise
        except OSError:
            self._gone = True
            return True
        gate.halfway = False
        gate.leave()
        return True

    def is_waited_for(self) -> bool:
        """Whether the supervisor has something to send, and found us sending."""
        return self._gate.wanted

    def _send_all(self, parts: list[memoryview | bytes]) -> None:
        while parts:
            try:
                sent = self._socket.sendmsg(parts[:_MOST_PARTS])
            except (BlockingIOError, InterruptedError):
                self._wait()
                continue
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = memoryview(parts[0])[sent:]

    def _wait(self) -> None:
        self._waits(True)
        try:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._supervisor:
                    raise _EndedError("the supervisor has ended this session")
        finally:
            self._waits(False)


class _EndedError(ConnectionError):
    """The supervisor is gone, or wants this process to go."""
