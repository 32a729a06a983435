"""The inputs of an entry as numpy arrays: tokens, positions, cache rows, attention mask.

Needs neither torch nor a model, so that the base install can run a packaged model.
:mod:`tapml.models.entries` explains each input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tapml_targets.errors import InputError

Array: TypeAlias = npt.NDArray[Any]

PREFILL: Final = "prefill"
DECODE: Final = "decode"
TOKENS: Final = "token_ids"
MODEL_INPUTS: Final = (TOKENS, "position_ids", "cache_rows", "attention_mask")
# Large enough to vanish in the softmax, small enough to stay finite when added to a score.
MASKED: Final = {"float32": -1e9, "float16": -3e4}
# Prefill is compiled for at least two tokens; a single one goes through decode.
SHORTEST_PREFILL: Final = 2


def state_names(layers: int) -> tuple[str, ...]:
    """Names of the cache tensors, in the order of the entries' arguments."""
    return tuple(f"cache.{layer}.{part}" for layer in range(layers) for part in ("key", "value"))


def entry_inputs(
    token_ids: Sequence[int], start: int, *, context_length: int, dtype: str
) -> dict[str, Array]:
    """Inputs of a run that stores tokens in the cache rows from `start` on.

    Parameters
    ----------
    token_ids
        The S new tokens.
    start
        Position of the first new token; the rows before it hold earlier tokens.
    context_length
        Rows T of the cache.
    dtype
        The model's, ``float32`` or ``float16``.

    Returns
    -------
    dict
        ``token_ids`` and ``position_ids`` int32 ``[1, S]``, ``cache_rows`` int32 ``[T]``,
        ``attention_mask`` of `dtype` ``[1, 1, S, T]``.

    Raises
    ------
    InputError
        If there is no token, or the tokens do not fit into the context.
    """
    length = len(token_ids)
    if length == 0:
        raise InputError("expected at least one token, got none: give a prompt that is not empty")
    if start < 0 or start + length > context_length:
        raise InputError(
            f"{length} tokens from position {start} on need a context of {start + length}, "
            f"but this one has {context_length}: shorten the prompt or load the model with a "
            "longer context (--context)"
        )
    positions = np.arange(start, start + length, dtype=np.int32)
    rows = np.full(context_length, -1, dtype=np.int32)
    rows[start : start + length] = np.arange(length, dtype=np.int32)
    visible = np.arange(context_length)[None, :] <= positions[:, None]
    mask = np.where(visible, 0.0, MASKED[dtype]).astype(dtype)
    return {
        "token_ids": np.asarray(token_ids, dtype=np.int32)[None],
        "position_ids": positions[None],
        "cache_rows": rows,
        "attention_mask": mask[None, None],
    }


def entry_for(length: int) -> str:
    """The entry for `length` tokens: a single token has to go through decode.

    >>> entry_for(1), entry_for(7)
    ('decode', 'prefill')
    """
    return PREFILL if length >= SHORTEST_PREFILL else DECODE
