"""Choosing a token from logits: the largest, or drawn from the nucleus of the distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tapml_targets.errors import InputError

Choose: TypeAlias = Callable[[npt.NDArray[Any]], int]
"""Takes logits ``[vocabulary]`` and gives a token id."""

HOTTEST: Final = 100.0
LARGEST_SEED: Final = (1 << 63) - 1


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

    Raises
    ------
    InputError
        If a value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= HOTTEST:
            raise InputError(f"temperature: expected 0 to {HOTTEST:g}, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p: expected more than 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"seed: expected 0 to {LARGEST_SEED}, got {self.seed}")

    def chooser(self) -> Choose:
        """A choice for each token of one text, in their order."""
        if self.temperature == 0:
            return largest
        generator = np.random.default_rng(self.seed)
        return lambda logits: self._draw(logits, float(generator.random()))

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
        reached = np.cumsum(weights[order])
        # The first place where the nucleus has its share is the last one in it.
        last = int(np.searchsorted(reached, self.top_p * reached[-1]))
        last = min(last, len(order) - 1)
        return int(order[np.searchsorted(reached[: last + 1], share * reached[last], "right")])


GREEDY: Final = Sampling()
