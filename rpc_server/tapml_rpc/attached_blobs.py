"""A session's attached blobs in its worker: read-only memory to copy from."""

from __future__ import annotations

import mmap
import os

from tapml_targets.errors import InputError, ProtocolError


class AttachedBlobs:
    """Read-only mappings of blobs by hash. All methods run on the device thread."""

    def __init__(self) -> None:
        self._views: dict[str, memoryview] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._views

    def __len__(self) -> int:
        return len(self._views)

    def receive(self, digest: str, descriptor: int, nbytes: int) -> None:
        """Map a blob the supervisor has attached; a descriptor of -1 releases it.

        The supervisor has hashed and sealed it. This object owns the descriptor. Raises
        ProtocolError if it does not hold `nbytes` bytes.
        """
        if descriptor < 0:
            self._views.pop(digest, None)
            return
        try:
            found = os.fstat(descriptor).st_size
            if found != nbytes or not nbytes:
                raise ProtocolError(f"blob {digest[:12]} of {nbytes} bytes came with {found}")
            # Private: Linux before 6.7 maps sealed memory in no other way.
            mapping = mmap.mmap(descriptor, nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        # The mapping ends with the last view of it: a command may still be reading.
        self._views[digest] = memoryview(mapping)

    def view(self, digest: str) -> memoryview:
        """A blob's bytes; raises InputError if it is not attached."""
        view = self._views.get(digest)
        if view is None:
            raise InputError(
                f"blob {digest[:12]} is not attached to this session: attach it, or wait for the "
                "answer to see whether it was"
            )
        return view

    def window(self, digest: str, offset: int, nbytes: int) -> memoryview:
        """Bytes of a blob; raises InputError if it is not attached or they lie outside it."""
        view = self.view(digest)
        if offset + nbytes > len(view):
            raise InputError(
                f"bytes {offset} to {offset + nbytes} lie outside blob {digest[:12]} of "
                f"{len(view)} bytes"
            )
        return view[offset : offset + nbytes]

    def close(self) -> None:
        """Release all of them."""
        self._views.clear()
