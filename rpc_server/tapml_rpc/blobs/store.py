"""The blobs of one supervisor: by hash, by owner, in memory and on disk, each within a budget.

Content is stored once for all senders, but an identity that has not sent it does not learn that it
is here: it owns what it has proved to possess. Sessions attach what their identity owns; what a
live session has attached stays, anything else is evicted when room is needed, least recently used
first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tapml_rpc.blobs.folder import BlobFolder
from tapml_rpc.blobs.index import Arrival, BlobIndex, HeldBlob
from tapml_rpc.blobs.memory import cost
from tapml_rpc.standard_error import say
from tapml_targets.errors import SetupError
from tapml_targets.host_memory import usable_bytes

_MAX_OWNERS: Final = 256


class Attachment(NamedTuple):
    """For a worker: a blob's descriptor, or -1 if its session has released the blob."""

    digest: str
    fd: int
    nbytes: int


class BlobStatistics(NamedTuple):
    """A blob store in numbers; sizes in bytes.

    `memory_bytes` counts complete pages and unfinished uploads. `received`, `attached`, `evicted`
    and `damaged` count events so far. `disk_problem` says why a copy was not written, or is empty.
    """

    blobs: int
    memory_bytes: int
    disk_bytes: int
    attached_bytes: int
    arriving_bytes: int
    received: int
    attached: int
    evicted: int
    damaged: int
    disk_problem: str


class BlobStore:
    """Blobs by SHA-256, scoped per identity. Callable from any thread.

    `memory_bytes` bound the memory of blobs and unfinished uploads, at most half of what the
    machine or its container allows: `memory_budget`. `disk_bytes` bound the copies in
    `disk_folder`, which holds nothing else and outlives the supervisor; 0 for no copies. Raises
    SetupError if the folder cannot be used.
    """

    def __init__(
        self, memory_bytes: int, disk_bytes: int = 0, disk_folder: Path | None = None
    ) -> None:
        self.memory_budget = min(memory_bytes, (usable_bytes() or sys.maxsize) // 2)
        self._disk_budget = disk_bytes if disk_folder is not None else 0
        self._lock = threading.RLock()
        # Held by the thread that reads from disk: two may ask for the same blob.
        self._reading = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._disk_problem = ""
        self._folder: BlobFolder | None = None
        self._background: ThreadPoolExecutor | None = None
        if disk_folder is not None and disk_bytes > 0:
            self._folder = BlobFolder(disk_folder)
            self._background = ThreadPoolExecutor(1, "tapml-blobs")
        self._index = BlobIndex(self.memory_budget, self._disk_budget, self._folder)
        for stored in self._folder.scan() if self._folder is not None else ():
            owners = dict.fromkeys(sorted(stored.owners)[:_MAX_OWNERS])
            blob = HeldBlob(stored.digest, stored.nbytes, owners, on_disk=True)
            self._index.blobs[stored.digest] = blob
            self._index.disk_used += stored.nbytes
        self._index.make_disk_room(0)

    def close(self) -> None:
        """Release all memory, once copies under way are on the disk."""
        with self._lock:
            # A blob that a session's thread takes meanwhile is not copied.
            background, self._background = self._background, None
        if background is not None:
            background.shutdown(wait=True)
        with self._lock:
            for blob in list(self._index.blobs.values()):
                blob.sessions.clear()
                self._index.drop_memory(blob)
            self._index.blobs.clear()
        if self._folder is not None:
            self._folder.close()

    def holds(self, identity: str, digest: str) -> bool:
        """Whether `identity` owns a blob that is here; it then counts as used."""
        with self._lock:
            return self._index.owned(identity, digest) is not None

    def begin(self, identity: str, digest: str, total: int) -> Arrival:
        """Reserve room for a blob that comes in pieces; raises InputError or SetupError."""
        with self._lock:
            self._index.make_room(identity, total)
            arrival = Arrival(digest, total)
            self._index.arriving[arrival] = identity
            self._index.reserved += cost(total)
            return arrival

    def abandon(self, arrival: Arrival) -> None:
        """Forget an upload that will not be finished. A second call does nothing."""
        with self._lock:
            if self._index.arriving.pop(arrival, None) is not None:
                self._index.reserved -= cost(arrival.total)
                arrival.memory.close()

    def keep(self, arrival: Arrival) -> None:
        """Take a complete blob: its sender owns it from now on."""
        with self._lock:
            index = self._index
            identity = index.arriving.pop(arrival)
            index.reserved -= cost(arrival.total)
            self._counts["received"] += 1
            blob = index.blobs.get(arrival.digest)
            if blob is None:
                blob = index.blobs[arrival.digest] = HeldBlob(arrival.digest, arrival.total, {})
            if blob.memory is None:
                index.give_memory(blob, arrival.memory)
            else:
                arrival.memory.close()
            index.blobs.move_to_end(blob.digest)
            if identity not in blob.owners:
                while len(blob.owners) >= _MAX_OWNERS:
                    del blob.owners[next(iter(blob.owners))]
                blob.owners[identity] = None
                if self._background is not None:
                    self._background.submit(self._copy, blob)
            index.bound_count()

    def attach(self, session: Hashable, identity: str, digest: str) -> Attachment | None:
        """Attach a blob until :meth:`detach`; None if the identity owns none.

        One that is only on disk is read, and waited for; raises InputError if it has no room.
        """
        if self._only_on_disk(identity, digest):
            with self._reading:
                with self._lock:
                    blob = self._only_on_disk(identity, digest)
                    if blob is not None:
                        self._index.make_room(identity, blob.nbytes)
                        self._index.reserved += cost(blob.nbytes)
                if blob is not None:
                    self._load(blob)
        with self._lock:
            blob = self._index.owned(identity, digest)
            if blob is None or blob.memory is None:
                return None
            blob.sessions[session] = identity
            self._counts["attached"] += 1
            if blob.on_disk and self._folder is not None:
                self._folder.touch(digest)
            return Attachment(digest, blob.memory.fileno(), blob.nbytes)

    def detach(self, session: Hashable, digest: str) -> None:
        """A session no longer needs a blob."""
        with self._lock:
            blob = self._index.blobs.get(digest)
            if blob is not None:
                blob.sessions.pop(session, None)

    def statistics(self) -> BlobStatistics:
        """The store's numbers."""
        with self._lock:
            index = self._index
            blobs = index.blobs.values()
            return BlobStatistics(
                blobs=len(blobs),
                memory_bytes=index.memory_used + index.reserved,
                disk_bytes=index.disk_used,
                attached_bytes=sum(cost(blob.nbytes) for blob in blobs if blob.sessions),
                arriving_bytes=sum(cost(arrival.total) for arrival in index.arriving),
                received=self._counts["received"],
                attached=self._counts["attached"],
                evicted=index.evicted,
                damaged=self._counts["damaged"],
                disk_problem=self._disk_problem,
            )

    def _copy(self, blob: HeldBlob) -> None:
        """Write a blob, or its owners, to disk, if there is room. On the background thread."""
        folder, index = self._folder, self._index
        with self._lock:
            memory, owners, copied = blob.memory, tuple(blob.owners), blob.on_disk
            if folder is None or index.blobs.get(blob.digest) is not blob:
                return
            descriptor = -1
            if not copied:
                if memory is None or not index.make_disk_room(blob.nbytes):
                    return
                index.disk_used += blob.nbytes
                descriptor = os.dup(memory.fileno())
        written = False
        try:
            if copied:
                folder.write_owners(blob.digest, owners)
            else:
                written = folder.write(
                    blob.digest, blob.nbytes, descriptor, owners, lambda: blob.memory is memory
                )
        except OSError as error:
            with self._lock:
                first = not self._disk_problem
                self._disk_problem = f"cannot write to {folder.path}: {error.strerror}"
            if first:
                say(f"{self._disk_problem}; what does not fit is kept in memory alone")
        finally:
            if descriptor >= 0:
                os.close(descriptor)
                with self._lock:
                    self._copied(folder, blob, written)

    def _copied(self, folder: BlobFolder, blob: HeldBlob, written: bool) -> None:
        """A copy was written or failed; the blob may be evicted by now, or be a new one."""
        now = self._index.blobs.get(blob.digest)
        if written and now is not None and not now.on_disk:
            now.on_disk = True
            return
        self._index.disk_used -= blob.nbytes
        if written and now is None:
            folder.remove(blob.digest)

    def _only_on_disk(self, identity: str, digest: str) -> HeldBlob | None:
        with self._lock:
            blob = self._index.owned(identity, digest)
            return blob if blob is not None and blob.memory is None else None

    def _load(self, blob: HeldBlob) -> None:
        """Read a blob from disk into its reserved room, and check its hash."""
        memory, damaged = None, False
        try:
            if self._folder is not None:
                memory = self._folder.read(blob.digest, blob.nbytes)
                damaged = memory is None
        except SetupError as error:
            # The machine is full: the file may be intact.
            self._disk_problem = str(error)
        finally:
            with self._lock:
                index = self._index
                index.reserved -= cost(blob.nbytes)
                here = index.blobs.get(blob.digest) is blob and blob.memory is None
                if memory is not None and here:
                    index.give_memory(blob, memory)
                elif memory is not None:
                    memory.close()
                elif damaged and blob.on_disk:
                    self._counts["damaged"] += 1
                    index.drop_from_disk(blob)
