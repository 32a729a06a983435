"""A client's connection while its session's worker reads it: the supervisor's side.

A client that sends short batches and waits for each is answered without this process in between:
its worker takes them off the connection itself. What the supervisor guards stays with it all the
same. The worker gets to read only while no other session has work, and gives back what is not a
short batch or a credit (:mod:`tapml_rpc.supervisor.own_reading`). What it takes it notes where this
process finds it (:mod:`tapml_rpc.supervisor.shared_reading`), and within two looks at the clock the
reading is back here when anything takes longer, so that goodbyes, ends and long kernels are met as
they always were.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tapml_rpc import wire
from tapml_rpc.supervisor.ring import make_memory
from tapml_rpc.supervisor.shared_reading import READING, READING_BYTES, SharedReading, Taken
from tapml_rpc.supervisor.turns import Turns
from tapml_rpc.supervisor.uploads import Uploads
from tapml_rpc.supervisor.worker_process import WorkerProcess
from tapml_rpc.zmtp.peer import Peer

# So many short batches in a row are taken for the beginning of more; again so many, and up to the
# most, where it was not so, until a worker has taken as many by itself as make up for it.
_PATIENCE: Final = 4
_MOST_PATIENCE: Final = 64


class LentReading:
    """One session's.

    Parameters
    ----------
    token, epoch
        What its messages name.
    worker
        Its worker.
    uploads
        Counts its batches.
    turns
        Those of all sessions.
    write
        Does what writes to the worker's pipe.
    """

    def __init__(
        self,
        token: bytes,
        epoch: bytes,
        worker: WorkerProcess,
        uploads: Uploads,
        turns: Turns,
        write: Callable[[Callable[[], None]], None],
    ) -> None:
        self._token = token
        self._told: wire.Header = {"type": READING, "session": token, "epoch": epoch}
        # How many times it has been.
        self._times = 0
        self._worker = worker
        self._uploads = uploads
        self._turns = turns
        self._write = write
        self._shared: SharedReading | None = None
        # Whether the worker has that memory too.
        self._given = False
        # Whose connection is lent; None while none is.
        self._peer: Peer | None = None
        self._patience = _PATIENCE
        # Messages that the worker had taken when it was lent, and when it was last looked at.
        self._begun = self._seen = 0
        self._batches = 0
        self._latest: Taken | None = None
        self.refused = False
        """Whether the worker could not be asked: it is receiving, or was stopped over it."""

    def lend(self, peer: Peer) -> None:
        """Let the worker read, where it looks as if that were of use."""
        uploads = self._uploads
        if self._peer is not None or uploads.short < self._patience or uploads.waits:
            return
        if not hasattr(select, "epoll"):
            return
        if self._shared is None:
            try:
                self._shared = SharedReading(make_memory(READING_BYTES, "reading"))
            except OSError:
                return
        shared = self._shared
        if not shared.enter():
            return
        try:
            if not self._turns.lend(self._token, self._tell_of_company):
                return
            if not peer.lend_reading():
                self._turns.have_back(self._token)
                return
            self._times += 1
            shared.hand_over(self._times)
        finally:
            shared.leave()
        self._peer = peer
        self._begun = self._seen = shared.messages
        packed = wire.pack(self._told | {"lent": self._times})
        descriptor = None if self._given else shared.descriptor
        self._given = True
        self._write(lambda: self._worker.pipe.send(packed, descriptor=descriptor))

    def check(self, answered: int) -> bool:
        """Look how it goes, once in a while; whether the client has been heard since.

        Parameters
        ----------
        answered
            The last batch that is.
        """
        if self._peer is None or self._shared is None:
            return False
        self.refused = False
        messages = self._shared.messages
        moved, self._seen = messages != self._seen, messages
        self.note()
        waits = self._latest is not None and self._latest.sequence > answered
        board = self._worker.board
        rests = not moved and (waits or self._peer.has_more())
        if rests or board.shared or board.paused:
            self._ask_back(self._shared, answered)
        return moved

    def _ask_back(self, shared: SharedReading, answered: int) -> None:
        """Have it back, in the middle of a long chunk at its end only; others need not wait."""
        # Not tried again below: a chunk may begin as soon as the worker lets go of the lock.
        self.refused = not shared.enter() or shared.halfway
        if not self.refused:
            self.have_back(answered)
            return
        shared.leave()
        if self._worker.board.shared:
            self._turns.have_back(self._token)

    def note(self) -> None:
        """Look which batches the worker has taken."""
        shared = self._shared
        if self._peer is not None and shared is not None and shared.enter():
            self._note(shared)
            shared.leave()

    def given_back(self, answered: int) -> None:
        """The worker says that it reads no more; of an earlier time, where it has it by now."""
        if self._peer is not None and self._shared is not None and not self._shared.lent:
            enough = self._shared.messages - self._begun >= _MOST_PATIENCE
            self._patience = _PATIENCE if enough else min(2 * self._patience, _MOST_PATIENCE)
            self.have_back(answered)

    def have_back(self, answered: int) -> None:
        """Read here again; later, where the worker is receiving."""
        shared, peer = self._shared, self._peer
        if shared is None or peer is None:
            return
        self.refused = not shared.enter()
        if self.refused:
            return
        self._note(shared)
        lost = shared.halfway
        received = bytes(shared.ahead[shared.start : shared.end])
        shared.lent = 0
        shared.leave()
        self._peer = None
        self._turns.have_back(self._token)
        if self._latest is not None:
            self._uploads.adopt(self._latest, answered)
            self._latest = None
        if lost:
            # The worker has died: what follows could be taken for anything.
            peer.close()
        elif not peer.closed:
            peer.have_reading(received)

    def close(self, answered: int) -> None:
        """The session has ended; its worker ends too."""
        self.have_back(answered)
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _note(self, shared: SharedReading) -> None:
        self._batches, batches = shared.taken_since(self._batches)
        for batch in batches:
            if self._uploads.remember(batch):
                self._latest = batch

    def _tell_of_company(self) -> None:
        # From any thread, and perhaps when the words have just gone with the session.
        with suppress(ValueError):
            self._worker.board.shared = True
