"""Memory of a simulated device: each buffer ends where pages begin that nobody may touch."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any, Final

from tapml_targets.errors import InputError

ALIGNMENT: Final = 16
"""A buffer begins at a multiple of so many bytes, which vectors need."""
_PAGE: Final = mmap.PAGESIZE


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


class Pages:
    """Memory from the system between two pages that nobody may touch.

    Attributes
    ----------
    address
        Its first byte.
    nbytes
        Its size, whole pages.
    """

    __slots__ = ("_whole", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-max(1, nbytes) // _PAGE) * _PAGE
        self._whole = self.nbytes + 2 * _PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        begin = _libc().mmap(None, self._whole, 0, flags, -1, 0)
        if begin in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"the system has no {nbytes} bytes")
        self.address = int(begin) + _PAGE
        if _libc().mprotect(self.address, self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE):
            self.release()
            raise MemoryError(f"the system has no {nbytes} bytes")

    def release(self) -> None:
        """Give it back."""
        if self._whole:
            _libc().munmap(self.address - _PAGE, self._whole)
            self._whole = self.nbytes = 0

    def __del__(self) -> None:
        self.release()


class GuardedBuffer:
    """A buffer of a simulated device.

    Attributes
    ----------
    address
        Its first byte, aligned.
    nbytes
        Usable bytes; 0 once it was freed.
    """

    __slots__ = ("_pages", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        room = -(-max(1, nbytes) // ALIGNMENT) * ALIGNMENT
        self._pages = Pages(room)
        self.address = self._pages.address + self._pages.nbytes - room
        self.nbytes = nbytes

    def check(self, byte_offset: int, nbytes: int, what: str) -> int:
        """The address of a window.

        Raises
        ------
        InputError
            If the window is not within the buffer.
        """
        if byte_offset < 0 or nbytes < 0 or byte_offset + nbytes > self.nbytes:
            raise InputError(
                f"{what}: bytes {byte_offset} to {byte_offset + nbytes} are outside a buffer of "
                f"{self.nbytes} bytes"
            )
        return self.address + byte_offset

    def window(self, byte_offset: int, nbytes: int, what: str) -> memoryview:
        """The bytes of a window; raises as :meth:`check`."""
        address = self.check(byte_offset, nbytes, what)
        return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")

    def release(self) -> None:
        """Give the memory back."""
        self._pages.release()
        self.nbytes = 0
