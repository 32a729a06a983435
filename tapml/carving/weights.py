"""Weights of a model as the suite stores them; hashed once per process and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tapml.execute.arrays import Array

_KNOWN: Final[dict[str, dict[str, tuple[bytes, ...]]]] = {}
# Models whose digests are remembered; a process rarely carves more than one.
_MODELS_KEPT: Final = 4


class WeightDigests:
    """Weights, and the digests of their chunks where they are known.

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

    def __getitem__(self, name: str) -> Array:
        """A weight."""
        return self._weights[name]

    def known(self, name: str) -> tuple[bytes, ...]:
        """The digests of a weight's chunks; empty where nobody hashed it yet."""
        return self._digests.get(name, ())

    def learn(self, digests: Mapping[str, Sequence[bytes]]) -> None:
        """Remember digests of weights that were stored."""
        self._digests.update({name: tuple(found) for name, found in digests.items()})
