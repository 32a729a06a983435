"""Blobs on disk: a file by its hash, and beside it its owners.

A blob counts once its content has its name, which comes last; what a killed process left half
written is removed by the next. Content is hashed whenever it is read: a damaged file is deleted and
counts as missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tapml_rpc.blobs.memory import BlobMemory, copy_pieces
from tapml_targets.errors import SetupError, TapmlError
from tapml_targets.failpoints import failpoint

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_OWNERS: Final = ".owners"
_LOCK: Final = "lock"
# All files that this module writes: any other is somebody else's.
_OURS: Final = re.compile(rf"{_LOCK}|(\.)?[0-9a-f]{{64}}({re.escape(_OWNERS)})?(?(1)\.partial)")
_MAX_OWNERS_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class StoredBlob:
    """A blob the folder has: its hash, its size in bytes, the identities that own it."""

    digest: str
    nbytes: int
    owners: frozenset[str]


class BlobFolder:
    """A folder of blobs, for this user and this process only; created if missing.

    Raises SetupError if it cannot be made private, another process uses it, or it holds other
    files: a mistyped path is left unchanged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            foreign = next((each.name for each in path.iterdir() if not _ours(each)), None)
            if foreign is not None:
                raise SetupError(
                    f"{path} holds other files ({foreign!r}), and blobs take a folder of their "
                    "own, which is kept private and cleaned: name one that is empty or new"
                )
            path.chmod(0o700)
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise SetupError(
                f"another process keeps its blobs in {path}; name another folder"
            ) from None
        except OSError as error:
            self.close()
            raise SetupError(
                f"cannot keep blobs in {path}: {error.strerror}; name a folder of your own"
            ) from None

    def close(self) -> None:
        """Release the folder for another process."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def scan(self) -> list[StoredBlob]:
        """The complete and owned blobs, least recently used first; removes the rest."""
        found = []
        for path in self.path.iterdir():
            if DIGEST.fullmatch(path.name) and (owners := self._owners(path.name)):
                status = path.stat()
                found.append((status.st_mtime_ns, StoredBlob(path.name, status.st_size, owners)))
        whole = {blob.digest for _, blob in found}
        for path in self.path.iterdir():
            stale = path.name != _LOCK and path.name.removesuffix(_OWNERS) not in whole
            if stale and _ours(path):
                with suppress(OSError), failpoint("remove", path):
                    path.unlink()
        return [blob for _, blob in sorted(found, key=lambda each: each[0])]

    def write(
        self,
        digest: str,
        nbytes: int,
        source: int,
        owners: Collection[str],
        wanted: Callable[[], bool],
    ) -> bool:
        """Copy a blob from a descriptor; False if it is no longer `wanted`. May raise OSError."""
        self.write_owners(digest, owners)
        try:
            with self._replacing(self.path / digest) as file:

                def take(offset: int, piece: memoryview) -> None:
                    if not wanted():
                        raise _NotWantedError
                    while piece:
                        piece = piece[os.write(file, piece) :]

                copy_pieces(source, nbytes, take)
        except BaseException as error:
            self.remove(digest)
            if isinstance(error, _NotWantedError):
                return False
            raise
        return True

    def write_owners(self, digest: str, owners: Collection[str]) -> None:
        """Write a blob's owners; raises OSError if that fails."""
        with self._replacing(self.path / f"{digest}{_OWNERS}") as file:
            os.write(file, json.dumps(sorted(owners)).encode())

    def read(self, digest: str, nbytes: int) -> BlobMemory | None:
        """A blob's content, sealed; None if it is damaged, and deleted. May raise SetupError."""
        memory = BlobMemory(nbytes)
        found = hashlib.sha256()

        def take(offset: int, piece: memoryview) -> None:
            found.update(piece)
            memory.write(offset, piece)

        try:
            source = os.open(self.path / digest, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                whole = os.fstat(source).st_size == nbytes and copy_pieces(source, nbytes, take)
            finally:
                os.close(source)
        except OSError:
            whole = False
        except TapmlError:
            memory.close()
            raise
        if not whole or found.hexdigest() != digest:
            memory.close()
            self.remove(digest)
            return None
        memory.seal()
        return memory

    def touch(self, digest: str) -> None:
        """Mark a blob as used now, for the next process."""
        with suppress(OSError):
            os.utime(self.path / digest)

    def remove(self, digest: str) -> None:
        """Delete a blob, if it is there."""
        for name in (digest, f"{digest}{_OWNERS}"):
            path = self.path / name
            with suppress(OSError), failpoint("remove", path):
                path.unlink(missing_ok=True)

    def _owners(self, digest: str) -> frozenset[str]:
        try:
            with (self.path / f"{digest}{_OWNERS}").open("rb") as file:
                owners = json.loads(file.read(_MAX_OWNERS_BYTES))
        except (OSError, ValueError, RecursionError):
            return frozenset()
        if not isinstance(owners, list):
            return frozenset()
        return frozenset(owner for owner in owners if isinstance(owner, str))

    @contextmanager
    def _replacing(self, path: Path) -> Iterator[int]:
        """A file to write, which replaces `path` once it is on the disk."""
        partial = path.with_name(f".{path.name}.partial")
        try:
            with failpoint("write", path):
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
                file = os.open(partial, flags, 0o600)
                try:
                    yield file
                    with failpoint("fsync", path):
                        os.fsync(file)
                finally:
                    os.close(file)
            with failpoint("rename", path):
                partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def _ours(path: Path) -> bool:
    return _OURS.fullmatch(path.name) is not None


class _NotWantedError(Exception):
    """The blob was evicted while it was being written."""
