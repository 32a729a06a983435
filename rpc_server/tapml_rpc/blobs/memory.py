"""Memory that is written once, sealed, and shared by its descriptor."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from typing import Final

from tapml_targets.errors import SetupError

PAGE_BYTES: Final = 4096
PIECE_BYTES: Final = 4 << 20
# Python 3.11 has no name for it; Linux has it since 5.1.
_F_SEAL_FUTURE_WRITE: Final = 0x10


class BlobMemory:
    """A blob's bytes, of fixed size, behind a file descriptor.

    A memfd, which no holder of the descriptor can change once it is sealed. Systems without one, or
    `memfd` false, use a temporary file without a name, and a descriptor that only reads. Raises
    SetupError if there is no memory or no descriptor left.
    """

    def __init__(self, nbytes: int, *, memfd: bool | None = None) -> None:
        self.nbytes = nbytes
        self._descriptor = -1
        self._reader = -1
        try:
            if hasattr(os, "memfd_create") if memfd is None else memfd:
                flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
                self._descriptor = os.memfd_create("tapml-blob", flags)
            else:
                self._descriptor, name = tempfile.mkstemp(prefix="tapml-blob-")
                try:
                    self._reader = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
                finally:
                    os.unlink(name)  # noqa: PTH108 - a descriptor's name, not a path of ours
            os.ftruncate(self._descriptor, nbytes)
        except OSError as error:
            self.close()
            raise SetupError(
                f"no memory for a blob of {nbytes} bytes: {error.strerror}; give the blob store a "
                "smaller budget, or this machine more memory or file descriptors"
            ) from None

    def __del__(self) -> None:
        self.close()

    @property
    def cost(self) -> int:
        """Bytes of memory it takes: complete pages."""
        return cost(self.nbytes)

    def fileno(self) -> int:
        """The descriptor; once sealed, it only reads."""
        return self._descriptor

    def write(self, offset: int, piece: memoryview) -> None:
        """Write a piece; raises SetupError if the machine has no memory left."""
        try:
            while piece:
                written = os.pwrite(self._descriptor, piece, offset)
                offset += written
                piece = piece[written:]
        except OSError as error:
            raise SetupError(
                f"no memory for a blob of {self.nbytes} bytes: {error.strerror}"
            ) from None

    def seal(self) -> None:
        """Make it read-only."""
        if self._reader >= 0:
            os.close(self._descriptor)
            self._descriptor, self._reader = self._reader, -1
            return
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        try:
            # No writable mapping of it was ever made, so that sealing future writes is as good as
            # F_SEAL_WRITE. That one is refused (EBUSY) while the kernel holds a page for its own
            # purposes, such as moving it.
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals | _F_SEAL_FUTURE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_WRITE)

    def close(self) -> None:
        """Release it; other descriptors and mappings keep it."""
        for descriptor in (self._descriptor, self._reader):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._reader = -1


def cost(nbytes: int) -> int:
    """Bytes of memory that `nbytes` bytes take: complete pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def copy_pieces(source: int, nbytes: int, take: Callable[[int, memoryview], None]) -> bool:
    """Pass a file's bytes to `take`, with their offsets, in pieces; False if it is shorter."""
    piece = memoryview(bytearray(min(nbytes, PIECE_BYTES)))
    offset = 0
    while offset < nbytes:
        count = os.preadv(source, [piece[: min(nbytes - offset, PIECE_BYTES)]], offset)
        if not count:
            return False
        take(offset, piece[:count])
        offset += count
    return True
