"""A tiny folder of each family with random weights: two layers, or one of each kind it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import transformers

from tapml.models import baichuan, rwkv, scan_llama
from tests.models.published_folders import PUBLISHED, write_published

# Sizes of a Llama; a family adds what makes it special, or has names of its own (None removes one).
_SIZES: Final[dict[str, Any]] = {
    "vocab_size": 131,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
# Shorter than the prompts of the tests, so that a wrong window shows.
WINDOW: Final = 9
_TWO_KINDS: Final = {
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "max_window_layers": 1,
}
_GPT2: Final = {
    "num_hidden_layers": None,
    "num_attention_heads": None,
    "num_key_value_heads": None,
    "max_position_embeddings": None,
    "n_positions": 64,
    "n_embd": 72,
    "n_layer": 2,
    "n_head": 6,
    "n_inner": 100,
}
_DISTILBERT: Final = {
    "hidden_size": None,
    "intermediate_size": None,
    "num_hidden_layers": None,
    "num_attention_heads": None,
    "num_key_value_heads": None,
    "max_position_embeddings": 32,
    "dim": 72,
    "hidden_dim": 100,
    "n_layers": 2,
    "n_heads": 6,
}
_BERT: Final = {"num_key_value_heads": None, "max_position_embeddings": 32}
_EXPERTS: Final = {
    "moe_intermediate_size": 20,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
}
_RWKV: Final = {
    "num_attention_heads": None,
    "num_key_value_heads": None,
    "max_position_embeddings": None,
    "initializer_range": None,
    "head_size": 12,
    "context_length": 64,
}
# By file of the family: configuration class, model class, settings.
SAMPLES: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "baichuan": ("BaichuanConfig", "BaichuanForCausalLM", {"num_key_value_heads": None}),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        {
            "d_model": 48,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 100,
            "decoder_ffn_dim": 100,
            "max_position_embeddings": 32,
            "decoder_start_token_id": 3,
            "tie_word_embeddings": True,
            "hidden_size": None,
            "intermediate_size": None,
            "num_hidden_layers": None,
            "num_attention_heads": None,
            "num_key_value_heads": None,
            "initializer_range": None,
            "init_std": 0.1,
        },
    ),
    "bert": ("BertConfig", "BertModel", _BERT),
    "bert_classifier": ("BertConfig", "BertForSequenceClassification", _BERT | {"num_labels": 5}),
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        _GPT2 | {"n_positions": None, "n_embd": None, "n_inner": None},
    ),
    "distilbert": ("DistilBertConfig", "DistilBertModel", _DISTILBERT),
    "distilbert_classifier": (
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        _DISTILBERT | {"num_labels": 5},
    ),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {"num_key_value_heads": None, "alibi": False, "multi_query": True, "bias": True},
    ),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {"head_dim": 20}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"head_dim": 20, "sliding_window": WINDOW, "query_pre_attn_scalar": 20},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "head_dim": 20,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 20,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT2 | {"tie_word_embeddings": True}),
    "gpt_bigcode": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", _GPT2),
    "gpt_neo": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {
            "num_key_value_heads": None,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "tie_word_embeddings": True,
        },
    ),
    "gpt_neox": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {"num_key_value_heads": None, "rotary_pct": 0.5},
    ),
    "internlm": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"num_key_value_heads": None, "attention_bias": True},
    ),
    "jetmoe": (
        "JetMoeConfig",
        "JetMoeForCausalLM",
        {
            "num_attention_heads": None,
            "num_key_value_heads": 3,
            "kv_channels": 12,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "tie_word_embeddings": True,
        },
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "mamba2": (
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {
            "num_attention_heads": None,
            "num_key_value_heads": None,
            "max_position_embeddings": None,
            "num_heads": 6,
            "head_dim": 24,
            "state_size": 10,
            "n_groups": 2,
            "chunk_size": 4,
            "expand": 2,
        },
    ),
    "minimax": (
        "MiniMaxConfig",
        "MiniMaxForCausalLM",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 4,
            "head_dim": 12,
        },
    ),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": WINDOW}),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {"sliding_window": WINDOW, "num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "mpt": (
        "MptConfig",
        "MptForCausalLM",
        {
            "hidden_size": None,
            "num_hidden_layers": None,
            "num_attention_heads": None,
            "num_key_value_heads": None,
            "max_position_embeddings": None,
            "d_model": 72,
            "n_layers": 2,
            "n_heads": 6,
            "max_seq_len": 64,
            "tie_word_embeddings": True,
        },
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            "num_key_value_heads": None,
            "intermediate_size": None,
            "ffn_dim": 100,
            "word_embed_proj_dim": 72,
            "tie_word_embeddings": True,
        },
    ),
    "orion": ("StableLmConfig", "StableLmForCausalLM", {"partial_rotary_factor": 1.0}),
    "phi": ("PhiConfig", "PhiForCausalLM", {"partial_rotary_factor": 0.5}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"sliding_window": WINDOW}),
    "qwen": ("Qwen2Config", "Qwen2ForCausalLM", {"num_key_value_heads": 6}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _TWO_KINDS),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {**_TWO_KINDS, **_EXPERTS, "shared_expert_intermediate_size": 28},
    ),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", {"head_dim": 16, **_EXPERTS}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16, **_TWO_KINDS}),
    "rwkv4": (
        "RwkvConfig",
        "RwkvForCausalLM",
        {**_RWKV, "head_size": None, "attention_hidden_size": 72},
    ),
    "rwkv5": ("Rwkv5Config", "Rwkv5ForCausalLM", _RWKV),
    "rwkv6": ("Rwkv6Config", "Rwkv6ForCausalLM", _RWKV),
    "scan_llama": ("ScanLlamaConfig", "ScanLlamaForCausalLM", {}),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": 131,
            "d_model": 48,
            "d_kv": 8,
            "d_ff": 100,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 6,
            "decoder_start_token_id": 0,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 12,
            "hidden_size": None,
            "intermediate_size": None,
            "num_hidden_layers": None,
            "num_attention_heads": None,
            "num_key_value_heads": None,
            "max_position_embeddings": None,
            "initializer_range": None,
        },
    ),
    "vit": (
        "ViTConfig",
        "ViTForImageClassification",
        {
            "vocab_size": None,
            "num_key_value_heads": None,
            "max_position_embeddings": None,
            "image_size": 24,
            "patch_size": 8,
            "num_labels": 5,
        },
    ),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            "d_model": 48,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 100,
            "decoder_ffn_dim": 100,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 32,
            "decoder_start_token_id": 3,
            "tie_word_embeddings": True,
            "hidden_size": None,
            "intermediate_size": None,
            "num_hidden_layers": None,
            "num_attention_heads": None,
            "num_key_value_heads": None,
            "max_position_embeddings": None,
            "initializer_range": None,
            "init_std": 0.1,
        },
    ),
    "xlstm": (
        "xLSTMConfig",
        "xLSTMForCausalLM",
        {
            "hidden_size": 128,
            "intermediate_size": None,
            "num_attention_heads": None,
            "num_key_value_heads": None,
            "max_position_embeddings": None,
            "initializer_range": None,
            "num_heads": 2,
        },
    ),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", {"partial_rotary_factor": 0.5}),
}


def randomise_rwkv(module: Any) -> None:
    """Decays of 0.1 to 0.9 and mixing weights around a half, as trained ones have."""
    for name, value in module.named_parameters():
        if name.endswith("time_state"):
            value.normal_()
        elif name.endswith(("time_decay", "time_faaaa")):
            value.uniform_(-2.0, 0.8)
        elif "time_mi" in name or ("time_maa" in name and not name.endswith(("w1", "w2"))):
            value.uniform_(0.2, 0.8)
        elif value.dim() > 1:
            value.normal_(std=0.3 if "embed" in name else 0.15)


def make_family(path: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write the folder of a family's sample and return it; `changes` go before its settings."""
    config_name, model_name, special = SAMPLES[family]
    homes = (baichuan, rwkv, scan_llama, transformers)
    home = next(each for each in homes if hasattr(each, config_name))
    settings = {**_SIZES, **special, **changes}
    config = getattr(home, config_name)(**{k: v for k, v in settings.items() if v is not None})
    torch.manual_seed(seed)
    module = getattr(home, model_name)(config)
    with torch.no_grad():
        if home is rwkv or config_name == "RwkvConfig":
            randomise_rwkv(module)
        for name, value in module.named_parameters():
            # Norm weights start as ones and biases as zeros, which would hide mistakes.
            if value.dim() == 1:
                value.add_(torch.randn_like(value) * (0.2 if "norm" in name else 0.05))
    if family in PUBLISHED:
        write_published(path, family, module)
    else:
        module.save_pretrained(path)
    return path
