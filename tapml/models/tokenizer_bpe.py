"""Byte pair encoding: a word is taken apart into characters, which are merged again by rank.

The order of merges, and what happens to characters without a token, are those of the ``tokenizers``
library: equal ranks from left to right, byte tokens ``<0x0A>`` for unknown characters where all of
them exist.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

_CACHED_WORDS: Final = 1 << 14
_LONGEST_CACHED: Final = 256
_END: Final = -1


@dataclass
class BytePairs:
    """A vocabulary and its merges.

    Attributes
    ----------
    vocabulary
        Token to id.
    merges
        Pair of ids to (rank, id of the merged token).
    unknown
        Id for characters that have no token; None leaves them out.
    fuse_unknown
        Whether neighbouring unknown characters are one token.
    byte_fallback
        Whether an unknown character becomes the tokens of its bytes.
    ignore_merges
        Whether a word that is a token is taken whole.
    """

    vocabulary: Mapping[str, int]
    merges: Mapping[tuple[int, int], tuple[int, int]]
    unknown: int | None = None
    fuse_unknown: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False
    _cache: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def encode(self, word: str) -> tuple[int, ...]:
        """Ids of a word."""
        known = self._cache.get(word)
        if known is not None:
            return known
        whole = self.vocabulary.get(word) if self.ignore_merges else None
        ids = (whole,) if whole is not None else self._merge(self._characters(word))
        if len(word) <= _LONGEST_CACHED and len(self._cache) < _CACHED_WORDS:
            self._cache[word] = ids
        return ids

    def _characters(self, word: str) -> list[int]:
        ids: list[int] = []
        waiting: int | None = None
        for character in word:
            token = self.vocabulary.get(character)
            if token is not None:
                if waiting is not None:
                    ids.append(waiting)
                    waiting = None
                ids.append(token)
                continue
            if self.byte_fallback:
                tokens = [self.vocabulary.get(f"<0x{byte:02X}>") for byte in character.encode()]
                found = [each for each in tokens if each is not None]
                if len(found) == len(tokens):
                    ids += found
                    continue
            if self.unknown is not None:
                if waiting is not None and not self.fuse_unknown:
                    ids.append(waiting)
                waiting = self.unknown
        return ids if waiting is None else [*ids, waiting]

    def _merge(self, ids: list[int]) -> tuple[int, ...]:
        """Merge neighbours, lowest rank first; merged symbols stay in place as a linked list."""
        before = list(range(-1, len(ids) - 1))
        after = [*range(1, len(ids)), _END]
        gone = [False] * len(ids)
        queue: list[tuple[int, int, int]] = []
        for position, pair in enumerate(pairwise(ids)):
            self._push(queue, position, pair)
        while queue:
            _, position, merged = heapq.heappop(queue)
            following = after[position]
            if gone[position] or following == _END:
                continue
            found = self.merges.get((ids[position], ids[following]))
            # An entry that an earlier merge has overtaken names another token.
            if found is None or found[1] != merged:
                continue
            ids[position] = merged
            gone[following] = True
            after[position] = after[following]
            if after[following] != _END:
                before[after[following]] = position
            if before[position] != _END:
                self._push(queue, before[position], (ids[before[position]], merged))
            if after[position] != _END:
                self._push(queue, position, (merged, ids[after[position]]))
        return tuple(token for token, removed in zip(ids, gone, strict=True) if not removed)

    def _push(self, queue: list[tuple[int, int, int]], position: int, pair: Sequence[int]) -> None:
        found = self.merges.get((pair[0], pair[1]))
        if found is not None:
            heapq.heappush(queue, (found[0], position, found[1]))
