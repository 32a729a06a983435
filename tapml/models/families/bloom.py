"""BLOOM: ALiBi in place of positions, a norm after the embedding, tied head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tapml.models.families.family import Family, full_cache
from tapml.models.families.sentence_masks import own_positions

if TYPE_CHECKING:
    from torch import Tensor, nn


def _prepare(module: nn.Module) -> None:
    """Let a mask with four dimensions through where the class makes slopes from one with two."""
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

    model: Any = module.transformer
    slopes = _get_alibi_slopes(model.num_heads, model.word_embeddings.weight.device)
    model.register_buffer("alibi_slopes", slopes[:, None, None], persistent=False)
    model.build_alibi_tensor = partial(_alibi, model, model.build_alibi_tensor)


def _alibi(model: Any, own: Any, attention_mask: Tensor, num_heads: int, dtype: Any) -> Tensor:
    """``[heads, 1, T]``: slope times row, since softmax ignores a sum with all scores of a row."""
    import torch

    if attention_mask.dim() != 4:
        made: Tensor = own(attention_mask, num_heads, dtype=dtype)
        return made
    rows = torch.arange(attention_mask.shape[-1], dtype=torch.float32)
    biases: Tensor = (model.alibi_slopes * rows).to(dtype)
    return biases


FAMILY = Family(
    architectures=("BloomForCausalLM",),
    layers="n_layer",
    other_names=(("hidden_size", "n_embed"), ("n_head", "num_attention_heads")),
    heads="n_head",
    kv_heads="",
    cache=full_cache,
    positions="",
    embedding="transformer.word_embeddings.weight",
    layer="transformer.h.{}.",
    prefix="transformer.",
    arguments=own_positions,
    prepare=_prepare,
)
