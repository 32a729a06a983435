"""How this process gives freed memory back."""

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
    """Keep freed memory in this process, up to the windows of two sessions; glibc only.

    By default freed memory returns to the system and comes back one zeroed page at a time, which
    costs as much as receiving a payload.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2 * wire.MAX_CHUNK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT_BYTES)
