"""Detects that a kernel's files were saved, by any editor.

It polls: editors write in place, or write another file and rename it, and some file systems send no
notifications. It compares names, times, sizes and inodes, and at rest also the contents, because
some file systems have timestamps of one second.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

POLL_SECONDS: Final = 0.02
_SETTLED_SECONDS: Final = 0.02
_LONGEST_SETTLING: Final = 0.5
_HASHED_BYTES: Final = 1 << 20
_PLAUSIBLE_AGE: Final = 5.0

Signature: TypeAlias = "tuple[tuple[str, int, int, int], ...]"


class FileWatcher:
    """The files of one kernel.

    Parameters
    ----------
    files
        Lists the files on every call, because a manifest may name another source.
    """

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._signature = self._look()
        self._content = self._hash()

    def changed(self) -> bool:
        """Whether a file was saved since :meth:`take`; fast enough to call between two tests."""
        return self._look() != self._signature

    def changed_at_rest(self) -> bool:
        """The same, comparing contents as well."""
        return self.changed() or self._hash() != self._content

    def take(self) -> float:
        """Wait until a save is complete and record the files; return the time since the save."""
        noticed = time.time()
        signature = self._look()
        deadline = time.monotonic() + _LONGEST_SETTLING
        while time.monotonic() < deadline:
            before = signature
            time.sleep(_SETTLED_SECONDS)
            signature = self._look()
            # An editor that renames leaves no file for a moment; one that writes, an empty file.
            if signature == before and all(size > 0 for _, _, size, _ in signature):
                break
        saved = set(signature) - set(self._signature)
        self._signature = signature
        self._content = self._hash()
        now = time.time()
        newest = max((mtime for _, mtime, _, _ in saved), default=0) / 1e9
        # A renamed file was written earlier, perhaps with another clock.
        return now - (newest if noticed - _PLAUSIBLE_AGE < newest <= now else noticed)

    def _look(self) -> Signature:
        found = []
        for path in self._files():
            try:
                status = path.stat()
            except OSError:
                found.append((str(path), 0, 0, 0))
                continue
            found.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)

    def _hash(self) -> bytes:
        digest = hashlib.sha256()
        left = _HASHED_BYTES
        for path in self._files():
            try:
                with path.open("rb") as file:
                    data = file.read(left)
            except OSError:
                continue
            left -= len(data)
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()
