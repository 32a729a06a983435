"""How likely a model finds tokens that are given: surprise and perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]


def surprise(logits: npt.NDArray[Any], following: Sequence[int]) -> Float64s:
    """Negative log-likelihood of the token that follows each position, in nats.

    Parameters
    ----------
    logits
        Shape ``[positions, vocabulary]``, of any float dtype.
    following
        The token after each of the first positions; rows beyond it are not read.
    """
    rows = logits[: len(following)].astype(np.float64)
    largest = rows.max(axis=1, initial=-np.inf)
    total = largest + np.log(np.exp(rows - largest[:, None]).sum(axis=1))
    found: Float64s = total - rows[np.arange(len(rows)), list(following)]
    return found


def perplexity(surprises: Sequence[Float64s]) -> float:
    """Exponential of the mean surprise; 0 without any."""
    each = np.concatenate([np.empty(0), *surprises])
    with np.errstate(over="ignore"):
        return float(np.exp(each.mean())) if each.size else 0.0
