"""The blobs of one supervisor: by hash, by owner, in memory and on disk, each within a budget.

Content is stored once whoever sent it, but who has not sent it does not learn that it is here: an
identity owns what it has proved to possess. Sessions attach what their identity owns; what a live
session has attached stays, anything else goes when room is needed, that used longest ago first.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tapml_rpc.blobs.arrival import Arrival
from tapml_rpc.blobs.folder import BlobFolder
from tapml_rpc.blobs.memory import BlobMemory, cost
from tapml_rpc.blobs.statistics import BlobStatistics
from tapml_targets.errors import InputError, SetupError

# What is read from disk while its client waits: anything larger would keep others waiting, too.
_READ_AT_ONCE_BYTES: Final = 4 << 20
_MAX_IN_MEMORY: Final = 4096
_MAX_BLOBS: Final = 65536
_MAX_OWNERS: Final = 256


class Attachment(NamedTuple):
    """What a worker is told: a blob's descriptor, or with -1 that its session has let go of it."""

    digest: str
    fd: int
    nbytes: int


@dataclass(eq=False)
class _Blob:
    digest: str
    nbytes: int
    owners: dict[str, None]
    memory: BlobMemory | None = None
    on_disk: bool = False
    # The sessions that have it attached, and who they are.
    sessions: dict[Hashable, str] = field(default_factory=dict)


class BlobStore:
    """Blobs by SHA-256, scoped per identity. Callable from any thread.

    Parameters
    ----------
    memory_bytes
        Most memory that blobs take, unfinished uploads included.
    disk_bytes
        Most disk that copies take; 0 for no copies.
    disk_folder
        Where copies lie, from one supervisor to the next; a folder of its own.

    Raises
    ------
    SetupError
        If the folder cannot be used.
    """

    def __init__(
        self, memory_bytes: int, disk_bytes: int = 0, disk_folder: Path | None = None
    ) -> None:
        self._memory_budget = memory_bytes
        self._disk_budget = disk_bytes if disk_folder is not None else 0
        self._lock = threading.RLock()
        # Those used longest ago first.
        self._blobs: OrderedDict[str, _Blob] = OrderedDict()
        self._arriving: dict[Arrival, str] = {}
        self._loading: dict[str, Future[None]] = {}
        self._reserved = self._memory_used = self._disk_used = 0
        self._in_memory = 0
        # Each blob in memory takes a descriptor of this process.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_in_memory = _MAX_IN_MEMORY
        if descriptors != resource.RLIM_INFINITY:
            self._most_in_memory = max(16, min(_MAX_IN_MEMORY, descriptors // 2))
        self._counts: Counter[str] = Counter()
        self._disk_problem = ""
        self._folder: BlobFolder | None = None
        self._background: ThreadPoolExecutor | None = None
        if disk_folder is not None and disk_bytes > 0:
            self._folder = BlobFolder(disk_folder)
            self._background = ThreadPoolExecutor(1, "tapml-blobs")
            for stored in self._folder.scan():
                owners = dict.fromkeys(sorted(stored.owners)[:_MAX_OWNERS])
                blob = _Blob(stored.digest, stored.nbytes, owners, on_disk=True)
                self._blobs[stored.digest] = blob
                self._disk_used += stored.nbytes
            self._make_disk_room(0)

    def close(self) -> None:
        """Let go of everything in memory, once copies under way are on the disk."""
        if self._background is not None:
            self._background.shutdown(wait=True)
        with self._lock:
            for blob in list(self._blobs.values()):
                blob.sessions.clear()
                self._drop_memory(blob)
            self._blobs.clear()
        if self._folder is not None:
            self._folder.close()

    def settle(self) -> None:
        """Wait until copies that are under way are on the disk."""
        if self._background is not None:
            self._background.submit(lambda: None).result()

    def holds(self, identity: str, digest: str) -> bool:
        """Whether `identity` owns a blob that is here; it then counts as used."""
        with self._lock:
            return self._owned(identity, digest) is not None

    def begin(self, identity: str, digest: str, total: int) -> Arrival:
        """Reserve room for a blob that will come in pieces.

        Raises
        ------
        InputError
            If there is no room, with what is held by whom.
        SetupError
            If the machine has no memory or descriptors left.
        """
        with self._lock:
            self._make_room(identity, total)
            arrival = Arrival(digest, total)
            self._arriving[arrival] = identity
            self._reserved += cost(total)
            return arrival

    def abandon(self, arrival: Arrival) -> None:
        """Forget an upload that will not be finished. Twice does nothing."""
        with self._lock:
            if self._arriving.pop(arrival, None) is not None:
                self._reserved -= cost(arrival.total)
                arrival.memory.close()

    def keep(self, arrival: Arrival) -> None:
        """Take a blob that has come whole: who sent it owns it from now on."""
        with self._lock:
            identity = self._arriving.pop(arrival)
            self._reserved -= cost(arrival.total)
            self._counts["received"] += 1
            blob = self._blobs.get(arrival.digest)
            if blob is None:
                blob = self._blobs[arrival.digest] = _Blob(arrival.digest, arrival.total, {})
            if blob.memory is None:
                self._give_memory(blob, arrival.memory)
            else:
                arrival.memory.close()
            self._blobs.move_to_end(blob.digest)
            if identity not in blob.owners:
                while len(blob.owners) >= _MAX_OWNERS:
                    del blob.owners[next(iter(blob.owners))]
                blob.owners[identity] = None
                self._copy_later(blob)
            for digest in list(self._blobs)[: max(0, len(self._blobs) - _MAX_BLOBS)]:
                self._forget(self._blobs[digest])

    def fetch(self, identity: str, digest: str) -> Future[None] | None:
        """Begin to read a blob that is on disk alone; None where there is nothing to wait for.

        Raises
        ------
        InputError
            If there is no room for it in memory.
        """
        with self._lock:
            blob = self._owned(identity, digest)
            if blob is None or blob.memory is not None or self._background is None:
                return None
            loading = self._loading.get(digest)
            if loading is None:
                self._make_room(identity, blob.nbytes)
                self._reserved += cost(blob.nbytes)
                if blob.nbytes <= _READ_AT_ONCE_BYTES:
                    self._load(blob)
                    return None
                loading = self._background.submit(self._load, blob)
                self._loading[digest] = loading
            return loading

    def attach(self, session: Hashable, identity: str, digest: str) -> Attachment | None:
        """Give a session a blob; None where its identity owns none such that is in memory.

        It stays in memory until :meth:`detach`. The descriptor stays this store's.
        """
        with self._lock:
            blob = self._owned(identity, digest)
            if blob is None or blob.memory is None:
                return None
            blob.sessions[session] = identity
            self._counts["attached"] += 1
            if blob.on_disk and self._folder is not None:
                self._folder.touch(digest)
            return Attachment(digest, blob.memory.fileno(), blob.nbytes)

    def detach(self, session: Hashable, digest: str) -> None:
        """A session does not need a blob any more."""
        with self._lock:
            blob = self._blobs.get(digest)
            if blob is not None:
                blob.sessions.pop(session, None)

    def statistics(self) -> BlobStatistics:
        """What is held and was done."""
        with self._lock:
            blobs = self._blobs.values()
            owned: Counter[str] = Counter()
            for blob in blobs:
                owned.update(dict.fromkeys(blob.owners, blob.nbytes))
            return BlobStatistics(
                blobs=len(self._blobs),
                memory_bytes=self._memory_used + self._reserved,
                memory_budget=self._memory_budget,
                disk_bytes=self._disk_used,
                disk_budget=self._disk_budget,
                attached_bytes=sum(cost(blob.nbytes) for blob in blobs if blob.sessions),
                arriving_bytes=sum(cost(arrival.total) for arrival in self._arriving),
                owned_bytes=dict(owned),
                received=self._counts["received"],
                attached=self._counts["attached"],
                evicted=self._counts["evicted"],
                damaged=self._counts["damaged"],
                disk_problem=self._disk_problem,
            )

    def _owned(self, identity: str, digest: str) -> _Blob | None:
        blob = self._blobs.get(digest)
        if blob is None or identity not in blob.owners:
            return None
        self._blobs.move_to_end(digest)
        return blob

    def _make_room(self, identity: str, nbytes: int) -> None:
        """Evict from memory until `nbytes` more fit.

        Raises
        ------
        InputError
            If they cannot.
        """
        need = cost(nbytes)
        room = self._memory_budget - self._reserved - need
        if room >= 0:
            for blob in list(self._blobs.values()):
                if self._memory_used <= room and not self._full():
                    break
                if blob.memory is not None and not blob.sessions:
                    self._drop_memory(blob)
                    self._counts["evicted"] += 1
        if room < 0 or self._memory_used > room or self._full():
            raise InputError(self._refusal(identity, nbytes))

    def _full(self) -> bool:
        """Whether there are as many blobs in memory as may be."""
        here = self._in_memory + len(self._arriving) + len(self._loading)
        return here >= self._most_in_memory

    def _refusal(self, identity: str, nbytes: int) -> str:
        """Why a blob does not fit: what is held by whom, in bytes."""
        own = others = 0
        for blob in self._blobs.values():
            if blob.sessions:
                if identity in blob.sessions.values():
                    own += cost(blob.nbytes)
                else:
                    others += cost(blob.nbytes)
        own_arriving = sum(
            cost(arrival.total) for arrival, whose in self._arriving.items() if whose == identity
        )
        return (
            f"no room for a blob of {nbytes} bytes in a store of {self._memory_budget} bytes and "
            f"{self._most_in_memory} blobs: sessions of yours have {own} bytes attached and "
            f"{own_arriving} on their way, others {others} and {self._reserved - own_arriving}; "
            "detach what is not needed any more, or write the bytes without the store"
        )

    def _give_memory(self, blob: _Blob, memory: BlobMemory) -> None:
        blob.memory = memory
        self._memory_used += memory.cost
        self._in_memory += 1

    def _drop_memory(self, blob: _Blob) -> None:
        """A blob leaves memory; it is here no more unless it is on disk."""
        if blob.memory is not None:
            self._memory_used -= blob.memory.cost
            self._in_memory -= 1
            blob.memory.close()
            blob.memory = None
        if not blob.on_disk:
            self._blobs.pop(blob.digest, None)

    def _drop_from_disk(self, blob: _Blob) -> None:
        if blob.on_disk and self._folder is not None:
            self._folder.remove(blob.digest)
            self._disk_used -= blob.nbytes
            blob.on_disk = False
        if blob.memory is None:
            self._blobs.pop(blob.digest, None)

    def _forget(self, blob: _Blob) -> None:
        if not blob.sessions:
            self._drop_from_disk(blob)
            self._drop_memory(blob)

    def _make_disk_room(self, nbytes: int) -> bool:
        """Evict from disk until `nbytes` more fit; False where they cannot."""
        for blob in list(self._blobs.values()):
            if self._disk_used + nbytes <= self._disk_budget:
                break
            if blob.on_disk and not blob.sessions:
                self._drop_from_disk(blob)
                self._counts["evicted"] += 1
        return self._disk_used + nbytes <= self._disk_budget

    def _copy_later(self, blob: _Blob) -> None:
        """Have the blob, or who owns it, written to disk; nobody waits for it."""
        if self._background is not None:
            self._background.submit(self._copy, blob)

    def _copy(self, blob: _Blob) -> None:
        """Write a blob to disk, where there is room. On the background thread."""
        folder = self._folder
        with self._lock:
            memory, owners, copied = blob.memory, tuple(blob.owners), blob.on_disk
            if folder is None or self._blobs.get(blob.digest) is not blob:
                return
            descriptor = -1
            if not copied:
                if memory is None or not self._make_disk_room(blob.nbytes):
                    return
                self._disk_used += blob.nbytes
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
                self._disk_problem = f"cannot write to {folder.path}: {error.strerror}"
        finally:
            if descriptor >= 0:
                os.close(descriptor)
                with self._lock:
                    self._copied(blob, written)

    def _copied(self, blob: _Blob, written: bool) -> None:
        """A copy was written, or not; the blob may have been evicted meanwhile, or be a new one."""
        now = self._blobs.get(blob.digest)
        if written and now is not None and not now.on_disk:
            now.on_disk = True
            return
        self._disk_used -= blob.nbytes
        if written and now is None and self._folder is not None:
            self._folder.remove(blob.digest)

    def _load(self, blob: _Blob) -> None:
        """Read a blob from disk into the room reserved for it, and look whether it is whole."""
        memory, damaged = None, False
        try:
            if self._folder is not None:
                memory = self._folder.read(blob.digest, blob.nbytes)
                damaged = memory is None
        except SetupError as error:
            # The machine is full: the file may be as good as ever.
            self._disk_problem = str(error)
        finally:
            with self._lock:
                self._reserved -= cost(blob.nbytes)
                self._loading.pop(blob.digest, None)
                here = self._blobs.get(blob.digest) is blob and blob.memory is None
                if memory is not None and here:
                    self._give_memory(blob, memory)
                elif memory is not None:
                    memory.close()
                elif damaged and blob.on_disk:
                    self._counts["damaged"] += 1
                    self._drop_from_disk(blob)
