"""MiniMax: layers of linear attention, which keep a matrix for each head, and of full attention."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tapml.models.families.family import BATCHED_EXPERTS, CacheShape, Family, even_cache
from tapml.models.families.masks import FULL, windowed

if TYPE_CHECKING:
    from torch import Tensor, nn

_LINEAR: Final = "linear_attention"


def _cache(config: Any) -> tuple[CacheShape, ...]:
    empty = CacheShape(0, 0, 0)
    return tuple(
        empty if kind == _LINEAR else shape
        for shape, kind in zip(even_cache(config), config.layer_types, strict=True)
    )


def _state(config: Any) -> dict[str, tuple[int, ...]]:
    heads = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return {
        f"state.{layer}.linear.0": (1, heads, size, size)
        for layer, kind in enumerate(config.layer_types)
        if kind == _LINEAR
    }


def _arguments(module: nn.Module, positions: Tensor, mask: Tensor) -> dict[str, Any]:
    given = windowed(module, positions, mask)
    return {**given, "attention_mask": {FULL: given["attention_mask"], _LINEAR: None}}


@contextmanager
def _own_cache(module: Any) -> Iterator[None]:
    """Let the class take our cache, of which it asks the same."""
    from tapml.models.stepped import KeptState

    home: Any = sys.modules[type(module).__module__]
    named = home.MiniMaxCache
    home.MiniMaxCache = KeptState
    try:
        yield
    finally:
        home.MiniMaxCache = named


FAMILY = Family(
    architectures=("MiniMaxForCausalLM",),
    workload="stepped",
    cache=_cache,
    state=_state,
    arguments=_arguments,
    around=_own_cache,
    loading=BATCHED_EXPERTS,
)
