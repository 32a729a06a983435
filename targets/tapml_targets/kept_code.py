"""Compiled code kept on disk: made once for each key, and read back only as it was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tapml_targets.cache_folder import cache_folder, write_atomically

# Behind the code, so that the file of a shared library is one.
_DIGEST_BYTES: Final = hashlib.sha256().digest_size


class KeptCode:
    """One compiled module in this user's cache; none where there is no room for a cache.

    Parameters
    ----------
    folder
        Name of the folder in the cache.
    ending
        How the file's name ends, with the dot.
    parts
        All that the code depends on: format, compiler, options, device and text.
    """

    def __init__(self, folder: str, ending: str, *parts: str | bytes) -> None:
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)
        self.path: Path | None
        try:
            self.path = cache_folder(folder) / f"{digest.hexdigest()}{ending}"
        except OSError:
            self.path = None

    def read(self) -> bytes | None:
        """The code, or None if it is not there as it was written."""
        if self.path is None:
            return None
        try:
            data = self.path.read_bytes()
        except OSError:
            return None
        code, checksum = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if hashlib.sha256(code).digest() == checksum:
            return code
        self.drop()
        return None

    def write(self, code: bytes) -> None:
        """Keep the code. A full disk costs the cache, not the build."""
        if self.path is None:
            return
        try:
            write_atomically(self.path, code + hashlib.sha256(code).digest())
        except OSError:
            self.drop()

    def drop(self) -> None:
        """Forget the code: who made it does not take it any more."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def code(self, build: Callable[[], bytes]) -> bytes:
        """The kept code; if there is none, what `build` makes, which is kept."""
        known = self.read()
        if known is None:
            known = build()
            self.write(known)
        return known
