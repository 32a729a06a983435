"""Content-addressed bytes on disk: chunks of at most 1 MiB, each stored once, appended to packs.

A pack is a sequence of chunks, each aligned to 64 bytes, so that tensors can be used directly in
the mapped file. The suite's index has the chunks' places and is written after them: if the process
ends early, a pack may hold bytes that the index does not know, never the reverse.

Chunks are not synced to disk as they are written, because waiting would cost more than carving. A
durable suite is synced once, at the end (:mod:`tapml.suite.folder`). After a power failure in the
seconds after any other carve, a truncated pack is detected when the suite is opened, and other
damage by the hashes.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from tapml.execute.arrays import ALIGNMENT, Bytes
from tapml_targets.errors import InputError
from tapml_targets.failpoints import failpoint

CHUNK_BYTES: Final = 1 << 20
PACK_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Chunk:
    """The place of a chunk and the SHA-256 of its content."""

    id: int
    digest: bytes
    pack: int
    offset: int
    length: int


def digest_of(data: Bytes) -> bytes:
    """SHA-256; releases the interpreter lock except for small data."""
    return hashlib.sha256(data.data).digest()


def split(memory: Bytes) -> Iterator[Bytes]:
    """Cut bytes into chunks; empty data is one empty chunk."""
    for start in range(0, max(1, len(memory)), CHUNK_BYTES):
        yield memory[start : start + CHUNK_BYTES]


def content_key(digests: Sequence[bytes]) -> bytes:
    """Hash of data in several chunks: the digest of the chunks' digests."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()


def pack_path(folder: Path, pack: int) -> Path:
    """The file of a pack."""
    return folder / f"{pack:06d}.pack"


class ChunkWriter:
    """Appends chunks to the packs of a new store, in an existing empty folder.

    Not thread-safe. New chunks are kept for the index until :meth:`take_new`. `stored_bytes` counts
    the bytes of all chunks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids: dict[bytes, int] = {}
        self._new: list[Chunk] = []
        self._pack = -1
        self._descriptor = -1
        self._path = folder
        self._offset = 0
        self.stored_bytes = 0

    def add(self, data: Bytes, digest: bytes | None = None) -> tuple[int, bytes]:
        """Store a chunk unless its content is already stored; return its id and digest.

        Parameters
        ----------
        data
            At most ``CHUNK_BYTES`` bytes.
        digest
            Its SHA-256 if known.

        Raises
        ------
        OSError
            If the file system is full.
        """
        digest = digest or digest_of(data)
        length = len(data)
        known = self._ids.get(digest)
        if known is not None:
            return known, digest
        if self._descriptor < 0 or self._offset + length > PACK_BYTES:
            self._next_pack()
        chunk = Chunk(len(self._ids), digest, self._pack, self._offset, length)
        self._write(data, length)
        self._ids[digest] = chunk.id
        self._new.append(chunk)
        self.stored_bytes += length
        return chunk.id, digest

    def add_all(self, memory: Bytes, digests: Sequence[bytes] = ()) -> tuple[list[int], bytes]:
        """Store data of any size; return its chunks' ids and its content key."""
        ids: list[int] = []
        found: list[bytes] = []
        for index, part in enumerate(split(memory)):
            identifier, digest = self.add(part, digests[index] if digests else None)
            ids.append(identifier)
            found.append(digest)
        return ids, content_key(found)

    def take_new(self) -> list[Chunk]:
        """Chunks whose place the index does not have yet."""
        new, self._new = self._new, []
        return new

    def close(self) -> None:
        """Close the current pack. Closing twice has no effect."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, data: Bytes, length: int) -> None:
        padding = -length % ALIGNMENT
        with failpoint("write", self._path):
            done = os.writev(self._descriptor, [data.data, bytes(padding)])
            if done != length + padding:
                # A short write: writing the rest succeeds or raises the reason.
                view = memoryview(data.tobytes() + bytes(padding))
                while done < len(view):
                    done += os.write(self._descriptor, view[done:])
        self._offset += length + padding

    def _next_pack(self) -> None:
        self.close()
        self._pack += 1
        self._path = pack_path(self._folder, self._pack)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._offset = 0


class ChunkReader:
    """Reads chunks from the mapped packs of a folder, without copies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packs: dict[int, Bytes] = {}

    def read(self, chunks: Sequence[Chunk], *, verify: bool = False) -> Bytes:
        """The bytes of consecutive chunks: a view if they are contiguous, else a copy.

        Parameters
        ----------
        chunks
            In order.
        verify
            Whether to compare each chunk with its digest.

        Raises
        ------
        InputError
            If a pack is missing or too short, or `verify` finds a mismatch.
        """
        parts = [self._part(chunk, verify=verify) for chunk in chunks]
        if len(parts) == 1:
            return parts[0]
        first, last = chunks[0], chunks[-1]
        together = all(
            a.pack == b.pack and a.offset + a.length == b.offset for a, b in pairwise(chunks)
        )
        if together:
            return self._pack(first.pack)[first.offset : last.offset + last.length]
        return np.concatenate(parts)

    def check_sizes(self, ends: Mapping[int, int]) -> None:
        """Raise :class:`InputError` if a pack is shorter than the end of its last chunk."""
        for pack, end in ends.items():
            self._check_size(pack, end)

    def close(self) -> None:
        """Drop the mappings; memory is unmapped when no tensor uses it any more."""
        self._packs.clear()

    def _part(self, chunk: Chunk, *, verify: bool) -> Bytes:
        pack = self._pack(chunk.pack)
        part = pack[chunk.offset : chunk.offset + chunk.length]
        if len(part) != chunk.length:
            self._check_size(chunk.pack, chunk.offset + chunk.length)
        if verify and digest_of(part) != chunk.digest:
            raise InputError(
                f"{pack_path(self._folder, chunk.pack)} is damaged: the {chunk.length} bytes from "
                f"{chunk.offset} on do not match their hash; carve again"
            )
        return part

    def _check_size(self, pack: int, end: int) -> None:
        size = len(self._pack(pack))
        if size < end:
            raise InputError(
                f"{pack_path(self._folder, pack)} is damaged: expected at least {end} bytes, "
                f"got {size}; carve again"
            )

    def _pack(self, pack: int) -> Bytes:
        mapped = self._packs.get(pack)
        if mapped is None:
            path = pack_path(self._folder, pack)
            try:
                with path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    # An empty file cannot be mapped.
                    mapped = (
                        np.frombuffer(
                            mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8
                        )
                        if size
                        else np.empty(0, np.uint8)
                    )
            except OSError as error:
                raise InputError(f"cannot read {path}: {error.strerror}; carve again") from error
            self._packs[pack] = mapped
        return mapped
