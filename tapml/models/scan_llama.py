"""A Llama whose attention also includes the running mean of all previous values.

Besides attention over the cache, each head gets the mean of its values up to the token's position,
scaled by a learned gate: a prefix sum over the rows of the value cache, indexed by position and
divided by the count. It represents recurrent models whose one special kernel is a scan (section
IV-E of the TapML paper: RWKV), in a family whose other operators are known: the state remains two
caches per layer.

The classes are part of tapml: a folder has ``"model_type": "scan_llama"`` and no code.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

MODEL_TYPE: Final = "scan_llama"


class ScanLlamaConfig(LlamaConfig):  # type: ignore[misc]
    """A Llama's configuration under the model type ``scan_llama``."""

    model_type = MODEL_TYPE


class ScanAttention(LlamaAttention):  # type: ignore[misc]
    """Attention plus a gated running mean of the values.

    `mean_gate`, float ``[heads]``, weights the mean of each head.
    """

    def __init__(self, config: ScanLlamaConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.mean_gate = nn.Parameter(torch.full((config.num_attention_heads,), 0.5))

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        *,
        position_ids: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Float ``[1, S, hidden]`` in and out; `position_ids` are int ``[1, S]``.

        Row ``p`` of the values holds position ``p``, as in a cache without padding.
        """
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            project(hidden_states).view(shape).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attended, weights = eager_attention_forward(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=0.0,
            scaling=self.scaling,
            **kwargs,
        )
        mixed = attended + self._running_mean(value, position_ids)
        return self.o_proj(mixed.reshape(*hidden_states.shape[:-1], -1)), weights

    def _running_mean(self, value: Tensor, position_ids: Tensor) -> Tensor:
        """Gated means ``[1, S, heads, head size]`` of values ``[1, KV heads, T, head size]``."""
        sums = torch.cumsum(value.transpose(2, 3), dim=-1)
        positions = position_ids.reshape(-1)
        here = torch.index_select(sums, 3, positions)
        mean = here / (positions + 1).to(value.dtype)
        # [1, S, KV heads, 1, head size]: heads of a group share one mean, each with its own gate.
        mean = mean.permute(0, 3, 1, 2).unsqueeze(3)
        gate = self.mean_gate.view(1, 1, -1, self.num_key_value_groups, 1)
        return (mean * gate).flatten(2, 3)


class ScanLlamaForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """The language model; weights are a Llama's plus ``self_attn.mean_gate`` per layer."""

    config_class = ScanLlamaConfig

    def __init__(self, config: ScanLlamaConfig) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = ScanAttention(config, index)
        self.post_init()


def register() -> None:
    """Register the classes with ``transformers`` under the configuration's model type."""
    AutoConfig.register(MODEL_TYPE, ScanLlamaConfig, exist_ok=True)
    AutoModelForCausalLM.register(ScanLlamaConfig, ScanLlamaForCausalLM, exist_ok=True)
