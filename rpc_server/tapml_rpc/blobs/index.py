"""A blob store's contents, their use of its budgets, and what is evicted.

Bookkeeping only: no method waits, and the caller holds the store's lock.
"""

from __future__ import annotations

import hashlib
import resource
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from tapml_rpc.blobs.folder import BlobFolder
from tapml_rpc.blobs.memory import BlobMemory, cost
from tapml_targets.errors import InputError, ProtocolError


class Arrival:
    """The received pieces of a blob.

    `digest` is the announced SHA-256 in hex, `total` the size in bytes, at least 1. `memory` holds
    the pieces, sealed when complete.
    """

    def __init__(self, digest: str, total: int) -> None:
        self.digest = digest
        self.total = total
        self.received = 0
        self.memory = BlobMemory(total)
        self._found = hashlib.sha256()

    def take(self, offset: int, piece: memoryview) -> bool:
        """Take the next piece; True when complete. Raises ProtocolError or SetupError."""
        end = offset + len(piece)
        if offset != self.received or not piece or end > self.total:
            raise ProtocolError(
                f"bytes {offset} to {end} of blob {self.digest[:12]} do not follow the "
                f"{self.received} of {self.total} that are here; begin again at 0"
            )
        self.memory.write(offset, piece)
        # Hashed as they come: at the last piece nothing is left to wait for.
        self._found.update(piece)
        self.received = end
        if end < self.total:
            return False
        found = self._found.hexdigest()
        if found != self.digest:
            raise ProtocolError(f"a blob announced as {self.digest} arrived as {found}")
        self.memory.seal()
        return True


_MAX_IN_MEMORY: Final = 4096
_MAX_BLOBS: Final = 65536


@dataclass(eq=False)
class HeldBlob:
    """A blob in memory, on disk, or both.

    `owners` are the identities that have sent it, in that order. `sessions` that have it attached
    map to their identities.
    """

    digest: str
    nbytes: int
    owners: dict[str, None]
    memory: BlobMemory | None = None
    on_disk: bool = False
    sessions: dict[Hashable, str] = field(default_factory=dict)


class BlobIndex:
    """The blobs of a store, least recently used first.

    Budgets are in bytes, memory in complete pages. Without `folder` there are no copies on disk.
    `arriving` are unfinished uploads and their identities. `reserved` is memory for uploads and for
    reads from disk; `memory_used` and `disk_used` are those of complete blobs. `evicted` counts
    removals from memory or disk for lack of room.
    """

    def __init__(self, memory_budget: int, disk_budget: int, folder: BlobFolder | None) -> None:
        self.blobs: OrderedDict[str, HeldBlob] = OrderedDict()
        self.arriving: dict[Arrival, str] = {}
        self.reserved = self.memory_used = self.disk_used = self.evicted = 0
        self._memory_budget = memory_budget
        self._disk_budget = disk_budget
        self._folder = folder
        self._in_memory = 0
        # Each blob in memory takes a descriptor of this process.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_in_memory = _MAX_IN_MEMORY
        if descriptors != resource.RLIM_INFINITY:
            self._most_in_memory = max(16, min(_MAX_IN_MEMORY, descriptors // 2))

    def owned(self, identity: str, digest: str) -> HeldBlob | None:
        """A blob that `identity` owns, which then counts as used; None if there is none."""
        blob = self.blobs.get(digest)
        if blob is None or identity not in blob.owners:
            return None
        self.blobs.move_to_end(digest)
        return blob

    def make_room(self, identity: str, nbytes: int) -> None:
        """Evict from memory until `nbytes` more fit; raises InputError: who holds what."""
        room = self._memory_budget - self.reserved - cost(nbytes)
        if room >= 0:
            for blob in list(self.blobs.values()):
                if self.memory_used <= room and not self._full():
                    break
                if blob.memory is not None and not blob.sessions:
                    self.drop_memory(blob)
                    self.evicted += 1
        if self.memory_used > room or self._full():
            raise InputError(self._refusal(identity, nbytes))

    def make_disk_room(self, nbytes: int) -> bool:
        """Evict from disk until `nbytes` more fit; False if they cannot."""
        for blob in list(self.blobs.values()):
            if self.disk_used + nbytes <= self._disk_budget:
                break
            if blob.on_disk and not blob.sessions:
                self.drop_from_disk(blob)
                self.evicted += 1
        return self.disk_used + nbytes <= self._disk_budget

    def bound_count(self) -> None:
        """Forget blobs beyond the maximum number."""
        for blob in list(self.blobs.values())[: max(0, len(self.blobs) - _MAX_BLOBS)]:
            if not blob.sessions:
                self.drop_from_disk(blob)
                self.drop_memory(blob)

    def give_memory(self, blob: HeldBlob, memory: BlobMemory) -> None:
        """A blob is in memory from now on."""
        blob.memory = memory
        self.memory_used += memory.cost
        self._in_memory += 1

    def drop_memory(self, blob: HeldBlob) -> None:
        """A blob leaves memory; it is forgotten unless it is on disk."""
        if blob.memory is not None:
            self.memory_used -= blob.memory.cost
            self._in_memory -= 1
            blob.memory.close()
            blob.memory = None
        if not blob.on_disk:
            self.blobs.pop(blob.digest, None)

    def drop_from_disk(self, blob: HeldBlob) -> None:
        """A blob leaves the disk; it is forgotten unless it is in memory."""
        if blob.on_disk and self._folder is not None:
            self._folder.remove(blob.digest)
            self.disk_used -= blob.nbytes
            blob.on_disk = False
        if blob.memory is None:
            self.blobs.pop(blob.digest, None)

    def _full(self) -> bool:
        return self._in_memory + len(self.arriving) >= self._most_in_memory

    def _refusal(self, identity: str, nbytes: int) -> str:
        """Why a blob does not fit: the bytes held by this identity and by others."""
        own = others = 0
        for blob in self.blobs.values():
            if identity in blob.sessions.values():
                own += cost(blob.nbytes)
            elif blob.sessions:
                others += cost(blob.nbytes)
        own_arriving = sum(
            cost(arrival.total) for arrival, whose in self.arriving.items() if whose == identity
        )
        return (
            f"no room for a blob of {nbytes} bytes in a store of {self._memory_budget} bytes and "
            f"{self._most_in_memory} blobs: sessions of yours have {own} bytes attached and "
            f"{own_arriving} on their way, others {others} and {self.reserved - own_arriving}"
        )
