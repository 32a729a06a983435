"""Whisper: the features of speech to text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapml.models.families.cross_attention import cross_attention, decoder_cache
from tapml.models.families.family import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


def _arguments(_module: nn.Module, positions: Tensor, mask: Tensor) -> dict[str, Any]:
    return {"decoder_position_ids": positions, "decoder_attention_mask": mask}


def _features(config: Any) -> tuple[int, int]:
    return int(config.num_mel_bins), 2 * int(config.max_source_positions)


FAMILY = Family(
    architectures=("WhisperForConditionalGeneration",),
    workload="encoder_decoder",
    width="d_model",
    layers="encoder_layers",
    heads="encoder_attention_heads",
    kv_heads="",
    positions="max_target_positions",
    embedding="model.decoder.embed_tokens.weight",
    layer="model.encoder.layers.{}.",
    cache=decoder_cache,
    arguments=_arguments,
    cross=cross_attention,
    features=_features,
)
