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
    """A blob's bytes behind a file descriptor.

    A memfd, which no holder of the descriptor can change once it is sealed. Systems without one get
    a temporary file without a name, and a descriptor that only reads.

    Parameters
    ----------
    nbytes
        Its size; it never changes.
    memfd
        Whether to use a memfd; None for wherever there is one.

    Raises
    ------
    SetupError
        If there is no memory or no descriptor left.
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
        """Bytes of memory it takes: whole pages."""
        return cost(self.nbytes)

    def fileno(self) -> int:
        """The descriptor; once sealed, it only reads."""
        return self._descriptor

    def write(self, offset: int, piece: memoryview) -> None:
        """Fill a window of it.

        Raises
        ------
        SetupError
            If the machine has no memory left.
        """
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
        """Nobody changes it from now on."""
        if self._reader >= 0:
            os.close(self._descriptor)
            self._descriptor, self._reader = self._reader, -1
            return
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        try:
            # No mapping that could be written to was ever made of it, so that sealing what is still
            # to come is as good as F_SEAL_WRITE. That one is refused (EBUSY) while the kernel holds
            # a page for a purpose of its own, such as moving it.
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals | _F_SEAL_FUTURE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_WRITE)

    def close(self) -> None:
        """Let go of it; whoever has a descriptor of their own, or a mapping, keeps it."""
        for descriptor in (self._descriptor, self._reader):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._reader = -1


def cost(nbytes: int) -> int:
    """Bytes of memory that `nbytes` bytes take: whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def copy_pieces(source: int, nbytes: int, take: Callable[[int, memoryview], None]) -> bool:
    """Hand a file's bytes to `take`, with their offsets, in pieces; False where it is shorter."""
    piece = memoryview(bytearray(min(nbytes, PIECE_BYTES)))
    offset = 0
    while offset < nbytes:
        count = os.preadv(source, [piece[: min(nbytes - offset, PIECE_BYTES)]], offset)
        if not count:
            return False
        take(offset, piece[:count])
        offset += count
    return True
