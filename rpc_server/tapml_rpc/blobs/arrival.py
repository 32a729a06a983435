"""A blob during its upload: pieces in order, and the hash they must have."""

from __future__ import annotations

import hashlib

from tapml_rpc.blobs.memory import BlobMemory
from tapml_targets.errors import ProtocolError


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
        """Take the next piece; True when the blob is complete and has its announced hash.

        Raises ProtocolError, after which nothing more can come, if the piece is out of place or the
        hash differs, and SetupError if the machine has no memory left.
        """
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
