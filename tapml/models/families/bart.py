"""BART: text to text with learned positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapml.models.families.family import CacheShape, Family

if TYPE_CHECKING:
    from torch import Tensor, nn


def _cache(config: Any) -> tuple[CacheShape, ...]:
    heads = int(config.decoder_attention_heads)
    size = int(config.d_model) // heads
    return (CacheShape(heads, size, size),) * int(config.decoder_layers)


def _arguments(_module: nn.Module, _positions: Tensor, mask: Tensor) -> dict[str, Any]:
    return {"decoder_attention_mask": mask}


def _cross(module: Any) -> list[tuple[Any, Any]]:
    attention = (layer.encoder_attn for layer in module.model.decoder.layers)
    return [(each.k_proj, each.v_proj) for each in attention]


FAMILY = Family(
    architectures=("BartForConditionalGeneration",),
    workload="encoder_decoder",
    width="d_model",
    layers="encoder_layers",
    heads="encoder_attention_heads",
    kv_heads="",
    positions="max_position_embeddings",
    embedding="model.shared.weight",
    layer="model.encoder.layers.{}.",
    cache=_cache,
    arguments=_arguments,
    cross=_cross,
)
