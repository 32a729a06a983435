"""What a ``generation_config.json`` says of the tokens that an encoder-decoder writes.

As transformers' ``generate`` follows it without beams and without sampling. The rules choose among
logits; no logit that is compared is changed by them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

_Token: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Tokens: TypeAlias = Annotated[tuple[_Token, ...], Meta(max_length=1 << 16)]
_Words: TypeAlias = Annotated[tuple[_Tokens, ...], Meta(max_length=1 << 16)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]


@dataclass(frozen=True)
class TokenRules:
    """Which tokens are forced, and which are left out.

    Attributes
    ----------
    first
        The first new token (``forced_bos_token_id``).
    last
        The last one that there is room for (``forced_eos_token_id``).
    never, never_first
        Words of tokens that are never written (``suppress_tokens``, ``bad_words_ids``), and tokens
        that no text begins with (``begin_suppress_tokens``).
    shortest
        New tokens before an end token may come.
    no_repeat
        No run of so many tokens is written twice; 0 allows it.
    penalty
        What the logits of tokens that are there are divided by, or multiplied with below 0.
    """

    first: _Token | None = None
    last: _Token | None = None
    never: _Words = ()
    never_first: _Tokens = ()
    shortest: _Count = 0
    no_repeat: _Count = 0
    penalty: Annotated[float, Meta(gt=0)] = 1.0

    @classmethod
    def of(cls, generation: Any, *, start: int, vocabulary: int, ends: Collection[int]) -> Self:
        """Those of a ``GenerationConfig`` or None; `start` counts the decoder's first tokens."""

        def said(name: str) -> Any:
            return getattr(generation, name, None)

        def token(name: str) -> int | None:
            found = said(name)
            found = found[0] if isinstance(found, list) and found else found
            return found if isinstance(found, int) and 0 <= found < vocabulary else None

        bad = (tuple(map(int, word)) for word in said("bad_words_ids") or ())
        words: list[tuple[int, ...]] = [(int(each),) for each in said("suppress_tokens") or ()]
        words += (word for word in bad if word and not (len(word) == 1 and word[0] in ends))
        return cls(
            first=token("forced_bos_token_id") if start == 1 else None,
            last=token("forced_eos_token_id"),
            never=tuple(word for word in words if all(0 <= each < vocabulary for each in word)),
            never_first=tuple(
                each for each in said("begin_suppress_tokens") or () if 0 <= each < vocabulary
            ),
            shortest=max(said("min_new_tokens") or 0, (said("min_length") or 0) - start),
            no_repeat=said("no_repeat_ngram_size") or 0,
            penalty=float(said("repetition_penalty") or 1.0),
        )

    def choose(
        self, logits: NDArray[Any], written: Sequence[int], start: int, ends: Collection[int]
    ) -> int:
        """The next token from logits ``[vocabulary]``; the first `start` of `written` are given."""
        new = len(written) - start
        if new == 0 and self.first is not None:
            return self.first
        row = logits
        if self.penalty != 1.0:
            row, there = row.astype(np.float64), sorted(set(written))
            row[there] *= np.where(row[there] < 0, self.penalty, 1 / self.penalty)
        barred = set(self._barred(written, new))
        if new < self.shortest:
            barred |= set(ends)
        if barred:
            row = row.copy()
            row[sorted(barred)] = -np.inf
        return int(row.argmax())

    def _barred(self, written: Sequence[int], new: int) -> Iterator[int]:
        for *begin, token in self.never:
            if not begin or list(written[-len(begin) :]) == begin:
                yield token
        if new == int(self.first is not None):
            yield from self.never_first
        if self.no_repeat:
            tail = list(written[len(written) - self.no_repeat + 1 :])
            for at in range(len(written) - self.no_repeat + 1):
                *begin, token = written[at : at + self.no_repeat]
                if begin == tail:
                    yield token
