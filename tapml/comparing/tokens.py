"""How far what two backends make of a language model's tokens is apart.

Logits are teacher-forced: every backend reads the same text. For each position there are the
Kullback-Leibler divergence of the second backend's distribution from the first's, and whether the
two put the same token first; greedy generation parts at the first position where they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapml.backends.runner import Array


@dataclass(frozen=True)
class Parting:
    """The first token of an instance that two backends choose otherwise.

    Attributes
    ----------
    instance, position
        Where; the token follows this position.
    tokens
        The choice of both.
    margins
        How far the logit of its own choice lies above that of the other's, on both.
    """

    instance: int
    position: int
    tokens: tuple[int, int]
    margins: tuple[float, float]


@dataclass(frozen=True)
class TokenDistances:
    """Of all instances; arrays have one element each.

    Attributes
    ----------
    divergence
        The largest divergence of a position, in nats.
    mean
        The mean divergence of a position.
    agreeing
        The share of positions with the same token first.
    partings
        The first parting of every instance that has one, by instance.
    """

    divergence: Array
    mean: Array
    agreeing: Array
    partings: dict[int, Parting]


def are_logits(token_ids: Array | None, outputs: Array) -> bool:
    """Whether an output holds a score for every token at every position."""
    return (
        token_ids is not None
        and outputs.dtype.kind == "f"
        and outputs.ndim == 3
        and outputs.shape[:2] == token_ids.shape
    )


def without_padding(outputs: Array, mask: Array | None) -> Array:
    """Outputs ``[instances, tokens, ...]``, zero where the mask is: padding means nothing."""
    if mask is None or outputs.shape[:2] != mask.shape:
        return outputs
    return np.where(mask.reshape(*mask.shape, *[1] * (outputs.ndim - 2)) > 0, outputs, 0)


def token_distances(first: Array, second: Array, mask: Array | None) -> TokenDistances:
    """Compare logits ``[instances, tokens, vocabulary]``, an instance at a time.

    Examples
    --------
    >>> one, other = np.array([[[2.0, 1.0]]]), np.array([[[1.0, 1.5]]])
    >>> token_distances(one, other, None).partings[0].margins
    (1.0, 0.5)
    """
    divergence, mean, agreeing = (np.zeros(len(first)) for _ in range(3))
    partings = {}
    for at in range(len(first)):
        kept = slice(None) if mask is None else mask[at] > 0
        one, other = (np.asarray(each[at][kept], np.float64) for each in (first, second))
        logs, others = _log_softmax(one), _log_softmax(other)
        # Rounding makes a divergence of nearly equal distributions negative.
        found = np.maximum(np.sum(np.exp(logs) * (logs - others), axis=-1), 0.0)
        divergence[at], mean[at] = found.max(), found.mean()
        choices = one.argmax(-1), other.argmax(-1)
        agreeing[at] = np.mean(choices[0] == choices[1])
        if agreeing[at] < 1:
            place = int(np.argmax(choices[0] != choices[1]))
            a, b = int(choices[0][place]), int(choices[1][place])
            margins = float(one[place, a] - one[place, b]), float(other[place, b] - other[place, a])
            partings[at] = Parting(at, place, (a, b), margins)
    return TokenDistances(divergence, mean, agreeing, partings)


def clearest(partings: Iterable[Parting]) -> Parting | None:
    """The parting with the largest margin, which is least a tie that rounding broke."""
    return max(partings, key=lambda each: min(each.margins), default=None)


def as_plain(parting: Parting) -> dict[str, Any]:
    """For JSON."""
    return {
        "instance": parting.instance,
        "position": parting.position,
        "tokens": list(parting.tokens),
        "margins": list(parting.margins),
    }


def tokens_of(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """A pair's largest divergence in nats, and the share of positions with the same token first."""
    if "KL" not in metrics:
        return "-", "-"
    largest = metrics["KL"]["largest"]
    return "-" if largest is None else f"{largest:.1e}", f"{metrics['top1']['agreement']:.2%}"


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
