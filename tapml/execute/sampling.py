"""Choosing a token from logits: the largest, or drawn from the nucleus of the distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tapml_targets.errors import InputError

Choose: TypeAlias = Callable[[npt.NDArray[Any]], int]
"""Takes logits ``[vocabulary]`` and gives a token id."""

HOTTEST: Final = 100.0
LARGEST_SEED: Final = (1 << 63) - 1
LARGEST_PENALTY: Final = 2.0
LARGEST_BIAS: Final = 100.0


def largest(logits: npt.NDArray[Any]) -> int:
    """The token of the largest logit; the first of equals."""
    return int(logits.argmax())


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes
    ----------
    temperature
        Logits are divided by it; 0 always takes the largest, and the others say nothing then.
    top_p
        Tokens are drawn from the smallest set of the most probable ones that has this share of
        the probability (nucleus sampling, Holtzman et al. 2020); 1 draws from all.
    seed
        The same seed, logits and lengths give the same tokens. None for another text each time.
    top_k
        Tokens are drawn from so many of the most probable ones; 0 draws from all.
    presence_penalty, frequency_penalty
        Taken from the logit of a token that the text has: once, and for each time that it has it.
        The prompt does not count.
    bias
        Token ids, and what is added to their logits.

    Raises
    ------
    InputError
        If a value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= HOTTEST:
            raise InputError(f"temperature: expected 0 to {HOTTEST:g}, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p: expected more than 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"seed: expected 0 to {LARGEST_SEED}, got {self.seed}")
        if self.top_k < 0:
            raise InputError(f"top_k: expected a number of tokens from 0, got {self.top_k}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -LARGEST_PENALTY <= value <= LARGEST_PENALTY:
                raise InputError(
                    f"{name}: expected -{LARGEST_PENALTY:g} to {LARGEST_PENALTY:g}, got {value}"
                )
        for token, value in self.bias:
            if not -LARGEST_BIAS <= value <= LARGEST_BIAS:
                raise InputError(
                    f"logit_bias: expected -{LARGEST_BIAS:g} to {LARGEST_BIAS:g} for the token "
                    f"{token}, got {value}"
                )

    def check_bias(self, vocabulary: int) -> None:
        """Raise :class:`InputError` if a token of the bias is not in the vocabulary."""
        for token, _ in self.bias:
            if not 0 <= token < vocabulary:
                raise InputError(
                    f"logit_bias: token {token} is not in the vocabulary of {vocabulary} tokens"
                )

    def chooser(self) -> Choose:
        """A choice for each token of one text, in their order."""
        generator = np.random.default_rng(self.seed)

        def choose(logits: npt.NDArray[Any]) -> int:
            if self.temperature == 0:
                return largest(logits)
            return self._draw(logits, float(generator.random()))

        if not (self.presence_penalty or self.frequency_penalty or self.bias):
            return choose
        counts: dict[int, int] = {}

        def choose_adjusted(logits: npt.NDArray[Any]) -> int:
            token = choose(self._adjusted(logits, counts))
            counts[token] = counts.get(token, 0) + 1
            return token

        return choose_adjusted

    def _adjusted(self, logits: npt.NDArray[Any], counts: Mapping[int, int]) -> npt.NDArray[Any]:
        """Logits with the bias added, and the penalties of the tokens so far taken away."""
        found = logits.astype(np.float64)
        for token, value in self.bias:
            found[token] += value
        for token, count in counts.items():
            found[token] -= count * self.frequency_penalty + self.presence_penalty
        return found

    def _draw(self, logits: npt.NDArray[Any], share: float) -> int:
        """The token at a `share` of the nucleus's probability, most probable ones first."""
        scaled = logits.astype(np.float64)
        if not np.isfinite(scaled.max()):
            raise InputError(
                "the target gave logits that are no numbers, so no token can be drawn from them: "
                "validate the model there (`tapml offload --device`)"
            )
        weights = np.exp((scaled - scaled.max()) / self.temperature)
        # Stable: ties are taken in the order of their ids, on every machine.
        order = np.argsort(-weights, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        reached = np.cumsum(weights[order])
        # The first place where the nucleus has its share is the last one in it.
        last = int(np.searchsorted(reached, self.top_p * reached[-1]))
        last = min(last, len(order) - 1)
        return int(order[np.searchsorted(reached[: last + 1], share * reached[last], "right")])


GREEDY: Final = Sampling()
