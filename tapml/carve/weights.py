"""Weights of a model as the suite stores them; hashed once per process and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.carve.chunks import ChunkWriter, content_key, digest_of, split
from tapml.execute.arrays import Array, flat_bytes

_KNOWN: Final[dict[str, dict[str, tuple[bytes, ...]]]] = {}
# Models whose digests are remembered; a process rarely carves more than one.
_MODELS_KEPT: Final = 4


class WeightDigests:
    """Digests of the chunks of each weight.

    Parameters
    ----------
    weights_hash
        Identifies all weights together; digests are remembered under it.
    weights
        Contiguous arrays by name.
    """

    def __init__(self, weights_hash: str, weights: Mapping[str, Array]) -> None:
        if weights_hash not in _KNOWN and len(_KNOWN) >= _MODELS_KEPT:
            _KNOWN.pop(next(iter(_KNOWN)))
        self._digests = _KNOWN.setdefault(weights_hash, {})
        self._weights = weights

    def digests(self, name: str) -> tuple[bytes, ...]:
        """The digest of each chunk of a weight."""
        found = self._digests.get(name)
        if found is None:
            found = tuple(digest_of(part) for part in split(flat_bytes(self._weights[name])))
            self._digests[name] = found
        return found

    def digest(self, name: str) -> bytes:
        """The content key of a weight."""
        return content_key(self.digests(name))

    def store(self, name: str, chunks: ChunkWriter) -> tuple[list[int], bytes]:
        """Store a weight; return its chunks' ids and its content key."""
        return chunks.add_all(flat_bytes(self._weights[name]), self.digests(name))
