"""Qwen, the first: Qwen2 with packed query, key and value, and other names.

Its scaling by the logarithm of the length and its dynamic frequencies act beyond ``seq_length``,
which bounds the context here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tapml.models.families.family import Family
from tapml.models.families.published import Piece, Published, same_keys

_OUTSIDE: Final = {
    "transformer.wte": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    "lm_head": "lm_head",
}
_IN_LAYER: Final = {
    "ln_1": "input_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.w1": "mlp.up_proj",
    "mlp.w2": "mlp.gate_proj",
    "mlp.c_proj": "mlp.down_proj",
}


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    made = same_keys(config)
    positions = int(made.get("max_position_embeddings") or config["seq_length"])
    return made | {
        "intermediate_size": int(config["intermediate_size"]) // 2,
        "num_key_value_heads": config["num_attention_heads"],
        "max_position_embeddings": min(int(config.get("seq_length") or positions), positions),
        "rms_norm_eps": float(config.get("layer_norm_epsilon") or 1e-6),
        "rope_theta": float(config.get("rotary_emb_base") or 10000.0),
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _pieces(config: Mapping[str, Any], name: str) -> Sequence[Piece]:
    path, _, end = name.rpartition(".")
    begin, _, inner = path.removeprefix("transformer.h.").partition(".")
    layer = f"model.layers.{begin}."
    if inner == "attn.c_attn":
        width = int(config["hidden_size"])
        return [
            Piece(f"{layer}self_attn.{part}_proj.{end}", slice(at * width, (at + 1) * width))
            for at, part in enumerate("qkv")
        ]
    if inner in _IN_LAYER:
        return (Piece(f"{layer}{_IN_LAYER[inner]}.{end}"),)
    return (Piece(f"{_OUTSIDE.get(path, path)}.{end}"),)


def _class() -> Any:
    from transformers import Qwen2ForCausalLM

    return Qwen2ForCausalLM


FAMILY = Family(
    architectures=("QWenLMHeadModel",),
    kv_heads="",
    positions="max_position_embeddings",
    embedding="transformer.wte.weight",
    layer="transformer.h.{}.",
    own_class=_class,
    published=Published(config=_config, pieces=_pieces),
)
