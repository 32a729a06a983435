"""Falcon with rotary embedding: parallel attention, one or few key and value heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapml.models.families.family import CacheShape, Family
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def _cache(config: Any) -> tuple[CacheShape, ...]:
    heads = config.num_attention_heads
    if not config.new_decoder_architecture:
        # The newer one stores the heads repeated.
        heads = 1 if config.multi_query else config.num_kv_heads
    size = config.hidden_size // config.num_attention_heads
    return (CacheShape(heads, size, size),) * int(config.num_hidden_layers)


def _prepare(module: nn.Module) -> None:
    config: Any = module.config
    if config.alibi:
        raise InputError(
            "this Falcon has ALiBi (alibi in config.json), which its class makes from the lengths "
            "of the batch: expected one with rotary embedding"
        )


FAMILY = Family(
    architectures=("FalconForCausalLM",),
    kv_heads="",
    embedding="transformer.word_embeddings.weight",
    layer="transformer.h.{}.",
    prefix="transformer.",
    cache=_cache,
    prepare=_prepare,
)
