"""Identifies stored content by what the index says of it, without reading a tensor.

Chunks are named by their hashes, so what lies in them need not be read to be told apart: the same
digest means the same bytes. The reverse does not hold, for equal tensors may be stored otherwise.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tapml.carving.chunks import Chunk
from tapml.carving.index import unpack
from tapml_targets.errors import InputError


@dataclass
class StoredContent:
    """Digests of chunks and of versions; both are remembered.

    Parameters
    ----------
    connection
        The suite's index.
    chunks
        All its chunks, by id.
    """

    connection: sqlite3.Connection
    chunks: Mapping[int, Chunk]
    _versions: dict[int, bytes] = field(default_factory=dict)

    def of_chunks(self, identifiers: Iterable[int]) -> bytes:
        """The digest of consecutive chunks.

        Raises
        ------
        InputError
            If the index names a chunk that it does not have.
        """
        digest = hashlib.sha256()
        try:
            for identifier in identifiers:
                digest.update(self.chunks[identifier].digest)
        except (KeyError, TypeError) as error:
            raise InputError(f"the suite's index is damaged (chunk {error}); carve again") from None
        return digest.digest()

    def of_version(self, version: int) -> bytes:
        """The digest of a version: of its base, and of the rows written since.

        Raises
        ------
        InputError
            If the index does not have it.
        """
        if version not in self._versions:
            self._learn_versions_like(version)
        try:
            return self._versions[version]
        except KeyError:
            raise InputError(
                f"the suite's index is damaged (version {version}); carve again"
            ) from None

    def _learn_versions_like(self, version: int) -> None:
        """All versions of one base at once: each one's digest goes on from the one before."""
        rows = self.connection.execute(
            "SELECT id, data FROM version WHERE base = (SELECT base FROM version WHERE id = ?) "
            "ORDER BY id",
            (version,),
        )
        digest = b""
        for identifier, blob in rows:
            content = unpack(blob)
            if isinstance(content, int):
                # A base of zeros.
                found, place = b"", repr(content)
            elif content and isinstance(content[-1], tuple):
                found, place = self.of_chunks(content[-1]), repr(content[:-1])
            else:
                found, place = self.of_chunks(content), ""
            digest = hashlib.sha256(digest + found + place.encode()).digest()
            self._versions[identifier] = digest
