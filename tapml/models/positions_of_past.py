"""Positions behind a cache, for tables that would take a range from one tensor to another.

How many numbers such a range has, only the run knows; a sum of a range and a tensor is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

_POSITIONS: Final = (
    ["input_ids_shape", "past_key_values_length", "position_ids"],
    ["input_ids", "past_key_values_length", "position_ids"],
)


@contextmanager
def positions_of_past(module: nn.Module) -> Iterator[None]:
    """Give ``transformers``' tables of positions their positions, while an entry runs."""
    parts: list[Any] = [
        part
        for part in module.modules()
        if list(inspect.signature(part.forward).parameters) in _POSITIONS
    ]
    for part in parts:
        part.forward = partial(_forward, part)
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _forward(
    part: Any,
    input_ids: Any = None,
    past_key_values_length: Any = 0,
    position_ids: Tensor | None = None,
    **given: Any,
) -> Any:
    past, given_shape = past_key_values_length, given.pop("input_ids_shape", input_ids)
    shape: Sequence[int] = getattr(given_shape, "shape", given_shape)
    if position_ids is None and isinstance(past, Tensor):
        position_ids = torch.arange(shape[1], dtype=past.dtype) + past
    return type(part).forward(part, given_shape, past, position_ids)
