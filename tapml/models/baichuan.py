"""Baichuan as a Llama: at 13B, attention by distance (ALiBi) in place of rotation.

ALiBi (Press et al., "Train Short, Test Long") adds a head's slope times the distance to each score.
Softmax ignores what all scores of a row share, so slope times the key's position is enough.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
from transformers.models.llama.modeling_llama import LlamaAttention


class BaichuanConfig(LlamaConfig):  # type: ignore[misc]
    """A Llama's, and whether it has ALiBi."""

    model_type = "baichuan"

    alibi: bool = False


class _AlibiAttention(LlamaAttention):  # type: ignore[misc]
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        slopes = _get_alibi_slopes(config.num_attention_heads, torch.device("cpu"))
        self.register_buffer("slopes", slopes[:, None, None], persistent=False)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Attend to cached positions: row p of the keys holds position p."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            project(hidden_states).view(shape).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        rows = torch.arange(key.shape[2], dtype=torch.float32)
        scores = query @ key.transpose(2, 3) * self.scaling
        scores = scores + (self.slopes * rows).to(scores.dtype)
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
        mixed = (weights @ value).transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)
        return self.o_proj(mixed), None


class BaichuanForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """A Llama, with the attention that its configuration names."""

    config_class = BaichuanConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.alibi:
            for index, layer in enumerate(self.model.layers):
                layer.self_attn = _AlibiAttention(config, index)
