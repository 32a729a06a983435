"""Has the C library keep the memory of messages for the messages to come."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

from tapml_rpc import wire

# The numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MOST_KEPT_BYTES: Final = 32 << 20


def keep_freed_memory() -> None:
    """Have this process keep freed memory, up to what the windows of two sessions take.

    Given back to the system at once, as is the default, it comes again a zeroed page at a time,
    which costs as much as receiving a payload. Does nothing where the C library is not glibc.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2 * wire.MAX_CHUNK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT_BYTES)
