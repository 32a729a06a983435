"""A text of a model's session, generated again where the model runs on another device.

A driver may compute something else than the one the model was validated on, without a word. A few
tokens are no validation; they tell a model that works from one that does not before anybody reads
what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

TOKENS: Final = 8
"""Tokens that are generated again."""

LONGEST_PROMPT: Final = 256
"""Tokens of a prompt that may be run for it."""


_Token: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]


@dataclass(frozen=True)
class Sample:
    """Token ids of a prompt, and those that the target wrote behind it at the session's end."""

    prompt: Annotated[tuple[_Token, ...], Meta(min_length=1, max_length=LONGEST_PROMPT)]
    tokens: Annotated[tuple[_Token, ...], Meta(min_length=1, max_length=TOKENS)]

    @classmethod
    def of(cls, texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Sample | None:
        """The shortest of prompts with their tokens; None where none is short enough."""
        fitting = [
            (prompt, tokens)
            for prompt, tokens in texts
            if 0 < len(prompt) <= LONGEST_PROMPT and tokens
        ]
        if not fitting:
            return None
        prompt, tokens = min(fitting, key=lambda each: len(each[0]))
        return cls(tuple(prompt), tuple(tokens[:TOKENS]))

    def compared(self, generate: Callable[[Sequence[int], int], Iterator[int]]) -> str:
        """Generate it again and say how it went, as what follows a colon.

        Parameters
        ----------
        generate
            Takes token ids of a prompt and how many tokens to generate.
        """
        found = generate(self.prompt, len(self.tokens))
        number = 0
        # A text may end before as many: the session went on behind an end token.
        for number, (token, expected) in enumerate(zip(found, self.tokens, strict=False), 1):
            if token != expected:
                return (
                    f"token {number} of a text of its session is {token} here and was {expected} "
                    "there, so this device computes something else, if not a near tie: move the "
                    "model on it to find out (`tapml offload --device`)"
                )
        return f"the first tokens of a text of its session ({number}) come out as they did there"
