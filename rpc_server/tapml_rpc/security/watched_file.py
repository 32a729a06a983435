"""A list in a file that people edit while a server runs: read again when it has changed.

It fails closed: a list that cannot be read admits nobody, because the last edit may have removed
somebody.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from tapml_rpc.security.private_files import read_checked

FILE_BYTES: Final = 4 << 20

Content = TypeVar("Content")


class WatchedFile(Generic[Content]):
    """The present content of a file; empty if the file is missing.

    `parse` takes the text and the name for errors. `secret`: others must not read it.
    """

    def __init__(
        self, path: Path, parse: Callable[[str, str], Content], *, secret: bool = False
    ) -> None:
        self.path = path
        self._parse = parse
        self._secret = secret
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._content: Content | None = None

    def read(self) -> Content:
        """The content; from any thread.

        Raises InputError, which names the line, if the file is damaged, and SetupError if others
        may write to it, or read it if it is secret.
        """
        with self._lock:
            try:
                status = self.path.stat()
            except FileNotFoundError:
                self._seen = None
                return self._parse("", str(self.path))
            except OSError:
                # read_checked reports what is wrong.
                seen = None
            else:
                seen = _stamp(status)
            if seen is None or seen != self._seen or self._content is None:
                self._seen = None
                text = read_checked(self.path, secret=self._secret, limit=FILE_BYTES)
                self._content = self._parse(text, str(self.path))
                self._seen = seen
            return self._content


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    # The mode too: a list that others may write to is not trusted from then on.
    return (
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
        status.st_ino,
        status.st_dev,
        status.st_mode,
    )
