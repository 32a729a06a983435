"""Small GGUF files, written by the library's own writer and quantized by its own quantizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapml.models.gguf.blocks import KINDS

gguf: Any = pytest.importorskip("gguf")

WIDTH, INNER, HEADS, GROUPS, LAYERS, WORDS = 256, 512, 4, 2, 2, 96
ALPHABET = [chr(code) for code in range(33, 127)]


# Kinds that the library does not quantize to: where the bytes of their scales are.
_SCALES = {
    "Q2_K": slice(-4, None),
    "Q3_K": slice(-2, None),
    "Q4_K": slice(0, 4),
    "Q5_K": slice(0, 4),
    "Q6_K": slice(-2, None),
    "IQ4_NL": slice(0, 2),
    "IQ4_XS": slice(0, 2),
}


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> np.ndarray[Any, Any]:
    """Random blocks with finite scales."""
    random = np.random.default_rng(seed)
    width, nbytes, _ = KINDS[kind]
    data = random.integers(0, 256, (rows, columns // width, nbytes), np.uint8)
    scale = random.uniform(1e-4, 1e-3, (*data.shape[:2], 2)).astype("<f2").view(np.uint8)
    place = data[..., _SCALES[kind]]
    place[...] = scale[..., : place.shape[-1]]
    return data.reshape(rows, -1)


def quantized(kind: str, matrix: np.ndarray[Any, Any], seed: int = 0) -> np.ndarray[Any, Any]:
    """The bytes of a matrix in a kind, uint8 ``[N, bytes of a row]``."""
    if kind in _SCALES:
        rows, columns = matrix.shape
        return random_blocks(kind, rows, columns, seed)
    data: np.ndarray[Any, Any] = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType[kind])
    return data


def dequantized(kind: str, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The library's own dequantizer."""
    matrix: np.ndarray[Any, Any] = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    return matrix


# What a layer has besides a Llama's.
MORE: dict[str, dict[str, tuple[int, ...]]] = {
    "qwen2": {
        "attn_q.bias": (WIDTH,),
        "attn_k.bias": (GROUPS * WIDTH // HEADS,),
        "attn_v.bias": (GROUPS * WIDTH // HEADS,),
    },
    "qwen3": {
        "attn_q_norm.weight": (WIDTH // HEADS,),
        "attn_k_norm.weight": (WIDTH // HEADS,),
    },
    "gemma2": {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)},
}
MORE["gemma3"] = MORE["gemma2"] | MORE["qwen3"]
MORE["phi3"] = {
    "attn_qkv.weight": (WIDTH + 2 * GROUPS * WIDTH // HEADS, WIDTH),
    "ffn_up.weight": (2 * INNER, WIDTH),
}
MORE["olmo2"] = MORE["gemma2"] | {
    "attn_q_norm.weight": (WIDTH,),
    "attn_k_norm.weight": (GROUPS * WIDTH // HEADS,),
}
EXPERTS, CHOSEN, EXPERT_INNER = 3, 2, 256
_OF_EXPERTS = {
    "ffn_gate_inp.weight": (EXPERTS, WIDTH),
    "ffn_gate_exps.weight": (EXPERTS, EXPERT_INNER, WIDTH),
    "ffn_up_exps.weight": (EXPERTS, EXPERT_INNER, WIDTH),
    "ffn_down_exps.weight": (EXPERTS, WIDTH, EXPERT_INNER),
}
MORE["qwen3moe"] = MORE["qwen3"] | _OF_EXPERTS
# Whose files have the architecture llama.
MORE["mixtral"] = _OF_EXPERTS
# What a layer lacks of a Llama's.
FEWER = {
    **dict.fromkeys(
        ("qwen3moe", "mixtral"), ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
    ),
    "phi3": ("attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight"),
    "olmo2": ("attn_norm.weight", "ffn_norm.weight"),
}
# Fields that are numbers with a fraction.
FRACTIONS = {
    "granite": {
        "granite.attention.scale": 0.2,
        "granite.embedding_scale": 3.0,
        "granite.residual_scale": 0.5,
        "granite.logit_scale": 2.0,
    }
}


def shapes(architecture: str = "llama") -> dict[str, tuple[int, ...]]:
    """The tensors of a small model by their names in a file."""
    head = WIDTH // HEADS
    layer = {
        "attn_norm": (WIDTH,),
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (GROUPS * head, WIDTH),
        "attn_v": (GROUPS * head, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    whole = {f"{n}.weight": s for n, s in layer.items()} | MORE.get(architecture, {})
    whole = {n: s for n, s in whole.items() if n not in FEWER.get(architecture, ())}
    named = {f"blk.{i}.{n}": s for i in range(LAYERS) for n, s in whole.items()}
    return {"token_embd.weight": (WORDS, WIDTH), **named, "output_norm.weight": (WIDTH,)}


def write_llama(
    path: Path,
    kind: str,
    *,
    architecture: str = "llama",
    scaling: tuple[str, float] | None = None,
    frequencies: Sequence[float] = (),
    short_factors: Sequence[float] = (),
    more: Mapping[str, int | str] | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Write a file; the float32 values of its tensors by their names in it."""
    writer = gguf.GGUFWriter(path, "llama" if architecture == "mixtral" else architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if architecture in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(8)
    if architecture in ("qwen3moe", "mixtral"):
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(CHOSEN)
        writer.add_expert_feed_forward_length(EXPERT_INNER)
    for name, fraction in FRACTIONS.get(architecture, {}).items():
        writer.add_float32(name, fraction)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)
    if scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling[0]))
        writer.add_rope_scaling_factor(scaling[1])
        if scaling[0] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(16)
    for name, value in (more or {}).items():
        if isinstance(value, str):
            writer.add_string(name, value)
        else:
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(name, value)
    for name, factors in (
        ("rope_freqs", frequencies),
        ("rope_factors_short", short_factors),
        ("rope_factors_long", short_factors),
    ):
        if len(factors):
            writer.add_tensor(f"{name}.weight", np.array(factors, np.float32))
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*ALPHABET, "th", "the"])
    writer.add_token_merges(["t h", "th e"])
    writer.add_token_types([1] * WORDS)
    random = np.random.default_rng(3)
    values = {}
    for seed, (name, shape) in enumerate(shapes(architecture).items()):
        matrix = (random.standard_normal(shape) * 0.1).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, matrix + 1)
            values[name] = matrix + 1
            continue
        if "gate_inp" in name:
            writer.add_tensor(name, matrix)
            values[name] = matrix
            continue
        data = quantized(kind, matrix.reshape(-1, shape[-1]), seed).reshape(*shape[:-1], -1)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
        values[name] = dequantized(kind, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values
