"""GPT-Neo: layers that see everything and layers with a window, in turn; scores are not scaled.

The class cuts a square of its own to the last rows, which is wrong for a cache of fixed length. So
an entry gives two masks side by side, and each layer takes the one of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tapml.models.families.family import Family
from tapml.models.families.masks import within_window

if TYPE_CHECKING:
    from torch import Tensor, nn

_KINDS: Final = ("global", "local")


def _arguments(module: nn.Module, position_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
    import torch

    config: Any = module.config
    near = within_window(position_ids, attention_mask, int(config.window_size))
    masks = torch.cat([attention_mask, near], dim=1)
    return {"position_ids": position_ids, "attention_mask": masks}


@contextmanager
def _masks_by_layer(module: Any) -> Iterator[None]:
    parts = [layer.attn.attention for layer in module.transformer.h]
    for part in parts:
        part._attn = partial(_attended, _KINDS.index(part.attention_type))
    try:
        yield
    finally:
        for part in parts:
            del part._attn


def _attended(
    kind: int, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention and its weights; the class computes scores in float32."""
    import torch

    scores = query.to(torch.float32) @ key.to(torch.float32).transpose(-1, -2)
    scores = scores + attention_mask[:, kind : kind + 1]
    weights = torch.softmax(scores, dim=-1).to(value.dtype)
    return weights @ value, weights


FAMILY = Family(
    architectures=("GPTNeoForCausalLM",),
    layers="num_layers",
    heads="num_heads",
    kv_heads="",
    embedding="transformer.wte.weight",
    layer="transformer.h.{}.",
    prefix="transformer.",
    arguments=_arguments,
    around=_masks_by_layer,
)
