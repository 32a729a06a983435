"""Folders in the published form of models whose code lies only there, from a known class's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

_KEPT = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps"),
    *("num_attention_heads", "bos_token_id", "eos_token_id", "pad_token_id", "hidden_act"),
    *("tie_word_embeddings", "initializer_range", "max_position_embeddings"),
)


def _config(module: Any, name: str, model_type: str, **more: Any) -> dict[str, Any]:
    given = {key: getattr(module.config, key) for key in _KEPT if hasattr(module.config, key)}
    code = {"AutoModelForCausalLM": f"modeling_{model_type}.{name}"}
    return {"architectures": [name], "model_type": model_type, "auto_map": code} | given | more


def _internlm(module: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    frequencies = module.model.rotary_emb.inv_freq.clone()
    weights = {**weights, "model.layers.0.self_attn.rotary_emb.inv_freq": frequencies}
    return _config(module, "InternLMForCausalLM", "internlm", bias=True), weights


def _orion(module: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    heads = module.config.num_key_value_heads
    more = {"num_key_value_heads": heads, "rms_norm_eps": module.config.layer_norm_eps}
    return _config(module, "OrionForCausalLM", "orion", **more), weights


def _packed(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The rows of q, k and v under one name; all else as it is."""
    made: dict[str, Tensor] = {}
    for path, value in weights.items():
        found = re.search(r"\.(q|k|v)_proj\.", path)
        if found is None:
            made[path] = value
        elif found[1] == "q":
            parts = [weights[path.replace(".q_proj.", f".{each}_proj.")] for each in "qkv"]
            made[path.replace("q_proj", name)] = torch.cat(parts)
    return made


def _baichuan(module: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = _config(module, "BaichuanForCausalLM", "baichuan")
    config["model_max_length"] = config["max_position_embeddings"]
    if module.config.alibi:
        del config["max_position_embeddings"]
    return config, _packed(weights, "W_pack")


def _qwen(module: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = _config(module, "QWenLMHeadModel", "qwen", seq_length=64)
    config |= {
        "intermediate_size": 2 * config["intermediate_size"],
        "max_position_embeddings": 128,
        "layer_norm_epsilon": config.pop("rms_norm_eps"),
        "rotary_emb_base": 10000,
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
    }
    return config, {_qwen_name(n): t for n, t in _packed(weights, "c_attn").items()}


def _qwen_name(name: str) -> str:
    for ours, theirs in (
        *(("model.layers.", "transformer.h."), ("self_attn.c_attn", "attn.c_attn")),
        *(("self_attn.o_proj", "attn.c_proj"), ("input_layernorm", "ln_1")),
        *(("post_attention_layernorm", "ln_2"), ("mlp.up_proj", "mlp.w1")),
        *(("mlp.gate_proj", "mlp.w2"), ("mlp.down_proj", "mlp.c_proj")),
        *(("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f")),
    ):
        name = name.replace(ours, theirs)
    return name


_WRITERS: dict[str, Callable[[Any, dict[str, Tensor]], Any]] = {
    "baichuan": _baichuan,
    "internlm": _internlm,
    "orion": _orion,
    "qwen": _qwen,
}
PUBLISHED = frozenset(_WRITERS)


def write_published(path: Path, family: str, module: Any) -> None:
    """Write a module of the family's class as its publisher does."""
    config, weights = _WRITERS[family](module, dict(module.state_dict()))
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    whole = {name: value.contiguous().clone() for name, value in weights.items()}
    save_file(whole, path / "model.safetensors", metadata={"format": "pt"})
