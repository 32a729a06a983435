"""A Llama in the manner of mlc-llm: packed projections, a paged cache, a free vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from mlc_llm.nn import PagedKVCache, RopeMode
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op


@dataclass
class Configuration:
    """The sizes that the definition reads."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    rms_norm_eps: float
    rope_theta: float

    @classmethod
    def from_dict(cls, source: dict[str, Any]) -> Configuration:
        """A configuration from ``config.json``."""
        assert "rope_scaling" not in source, "Unsupported RoPE scaling type"
        return cls(**{name: source[name] for name in cls.__dataclass_fields__})


class _Layer(nn.Module):
    def __init__(self, sizes: Configuration) -> None:
        width, self.size = sizes.hidden_size, sizes.hidden_size // sizes.num_attention_heads
        self.heads, self.kv_heads = sizes.num_attention_heads, sizes.num_key_value_heads
        packed = (self.heads + 2 * self.kv_heads) * self.size
        self.input_norm = nn.RMSNorm(width, -1, sizes.rms_norm_eps, bias=False)
        self.qkv = nn.Linear(width, packed, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, -1, sizes.rms_norm_eps, bias=False)
        self.gate_up = nn.Linear(width, 2 * sizes.intermediate_size, bias=False)
        self.down = nn.Linear(sizes.intermediate_size, width, bias=False)

    def forward(self, hidden: Tensor, cache: PagedKVCache, number: int) -> Tensor:
        """One layer."""
        batch, tokens, _ = hidden.shape
        packed = self.qkv(self.input_norm(hidden))
        packed = op.reshape(packed, (batch, tokens, self.heads + 2 * self.kv_heads, self.size))
        attended = cache.attention_with_fused_qkv(
            number, packed, self.heads, sm_scale=self.size**-0.5
        )
        hidden = hidden + self.out(op.reshape(attended, (batch, tokens, self.heads * self.size)))
        gate, up = op.split(self.gate_up(self.mlp_norm(hidden)), 2, axis=-1)
        return hidden + self.down(op.silu(gate) * up)


class Llama(nn.Module):
    """The model; `embed`, `batch_forward` and `create_paged_kv_cache` are what callers use."""

    def __init__(self, sizes: Configuration) -> None:
        self.sizes = sizes
        self.embed_tokens = nn.Embedding("vocab_size", sizes.hidden_size)
        self.layers = nn.ModuleList([_Layer(sizes) for _ in range(sizes.num_hidden_layers)])
        self.norm = nn.RMSNorm(sizes.hidden_size, -1, sizes.rms_norm_eps, bias=False)
        self.lm_head = nn.Linear(sizes.hidden_size, "vocab_size", bias=False)
        self.dtype = "float32"

    def to(self, dtype: str | None = None) -> None:
        """Every parameter becomes `dtype`."""
        super().to(dtype=dtype)
        self.dtype = dtype or self.dtype

    def embed(self, input_ids: Tensor) -> Tensor:
        """Rows of the embedding ``[tokens, width]``."""
        return self.embed_tokens(input_ids)

    def batch_forward(self, input_embeds: Tensor, paged_kv_cache: PagedKVCache) -> Tensor:
        """Logits in float32."""
        hidden = input_embeds
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, paged_kv_cache, number)
        logits = self.lm_head(self.norm(hidden))
        return logits if logits.dtype == "float32" else logits.astype("float32")

    def create_paged_kv_cache(self, *sizes: Any) -> PagedKVCache:
        """The cache of all layers."""
        size = self.sizes.hidden_size // self.sizes.num_attention_heads
        return PagedKVCache.create_generic(
            attn_kind="mha",
            num_hidden_layers=self.sizes.num_hidden_layers,
            num_attention_heads=self.sizes.num_attention_heads,
            num_key_value_heads=self.sizes.num_key_value_heads,
            qk_head_dim=size,
            v_head_dim=size,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=self.sizes.rope_theta,
            dtype=self.dtype,
        )


_NORMS = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_JOINED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "out": ("self_attn.o_proj",),
    "down": ("mlp.down_proj",),
}


def mapping(sizes: Configuration, quantization: Any) -> SimpleNamespace:
    """Which stored weights each parameter is made of, and how."""
    found: dict[str, list[str]] = {
        "embed_tokens.weight": ["model.embed_tokens.weight"],
        "norm.weight": ["model.norm.weight"],
        "lm_head.weight": ["lm_head.weight"],
    }
    for layer in range(sizes.num_hidden_layers):
        here, there = f"layers.{layer}", f"model.layers.{layer}"
        for name, other in _NORMS.items():
            found[f"{here}.{name}.weight"] = [f"{there}.{other}.weight"]
        for name, others in _JOINED.items():
            found[f"{here}.{name}.weight"] = [f"{there}.{each}.weight" for each in others]

    def joined(*arrays: Any) -> Any:
        return np.concatenate(arrays, axis=0).astype(quantization.model_dtype)

    return SimpleNamespace(param_map=found, map_func=dict.fromkeys(found, joined))
