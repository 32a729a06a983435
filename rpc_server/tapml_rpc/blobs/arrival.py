"""A blob on its way in: pieces in order, and the hash they must have."""

from __future__ import annotations

import hashlib

from tapml_rpc.blobs.memory import BlobMemory
from tapml_targets.errors import ProtocolError


class Arrival:
    """The pieces of a blob that have come so far.

    Parameters
    ----------
    digest
        SHA-256 it was announced with, in hex.
    total
        Its size in bytes, at least 1.

    Attributes
    ----------
    memory
        Where it is put together; sealed when it is complete.
    received
        Bytes that have come.
    """

    def __init__(self, digest: str, total: int) -> None:
        self.digest = digest
        self.total = total
        self.received = 0
        self.memory = BlobMemory(total)
        self._found = hashlib.sha256()

    def take(self, offset: int, piece: memoryview) -> bool:
        """Take the next piece; True when the blob is complete and is what it was announced as.

        Raises
        ------
        ProtocolError
            If the piece is out of place, or the whole has another hash. Nothing more can come.
        SetupError
            If the machine has no memory left.
        """
        end = offset + len(piece)
        if offset != self.received or not piece or end > self.total:
            raise ProtocolError(
                f"bytes {offset} to {end} of blob {self.digest[:12]} do not follow the "
                f"{self.received} of {self.total} that are here; begin again at 0"
            )
        self.memory.write(offset, piece)
        # As they come: with the last piece there is nothing left to wait for.
        self._found.update(piece)
        self.received = end
        if end < self.total:
            return False
        found = self._found.hexdigest()
        if found != self.digest:
            raise ProtocolError(f"a blob announced as {self.digest} arrived as {found}")
        self.memory.seal()
        return True
