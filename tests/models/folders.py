"""Small Llama-family folders with random weights, whole ones and damaged ones, for tests."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tapml.models import resolve_model
from tapml.models.scan_llama import ScanLlamaConfig, ScanLlamaForCausalLM

# Odd sizes on purpose: tails of tiles, a head that is no power of two, grouped queries.
BASE: dict[str, Any] = {
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
    "tie_word_embeddings": False,
}


def _rope(kind: str, **settings: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **settings}}


# What is special about each kind; keys with an underscore are not for the configuration.
KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "tied": {"tie_word_embeddings": True},
    "no_grouped_queries": {"num_key_value_heads": 6},
    "one_kv_head": {"num_key_value_heads": 1},
    "wide_head": {"head_dim": 20},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one_layer": {"num_hidden_layers": 1},
    "float16": {"_dtype": torch.float16},
    "bfloat16": {"_dtype": torch.bfloat16},
    "sharded": {"_shard": "60KB"},
    "rope_linear": _rope("linear", factor=2.0),
    "rope_dynamic": _rope("dynamic", factor=2.0),
    "rope_llama3": _rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    ),
    "rope_yarn": _rope("yarn", factor=4.0, original_max_position_embeddings=16),
    "mistral": {"_family": "mistral", "sliding_window": None},
    "mistral_window": {"_family": "mistral", "sliding_window": 24},
    "qwen2": {"_family": "qwen2"},
    "qwen3": {"_family": "qwen3", "head_dim": 16},
    "scan_llama": {"_family": "scan_llama"},
}
_FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "scan_llama": (ScanLlamaConfig, ScanLlamaForCausalLM),
}


def make_folder(
    path: Path, kind: str = "float32", *, seed: int = 0, tokenizer: bool = False, **config: Any
) -> Path:
    """Write a model folder of one of `KINDS` and return it.

    Parameters
    ----------
    path
        The folder; it is made.
    kind
        A key of `KINDS`.
    seed
        Of the weights.
    tokenizer
        Whether to add the zoo's tokenizer (2000 tokens). Without it the folder has none.
    config
        Settings that go before those of the kind; ``_shard`` is the size of a file of weights.
    """
    special = KINDS[kind]
    settings = {**BASE, **special, **config}
    if tokenizer:
        settings["vocab_size"] = 2000
    configuration, model = _FAMILIES[special.get("_family", "llama")]
    torch.manual_seed(seed)
    module = model(configuration(**{k: v for k, v in settings.items() if k[0] != "_"}))
    with torch.no_grad():
        for name, value in module.named_parameters():
            # Norm weights start as ones and biases as zeros, which would hide mistakes.
            if value.dim() == 1:
                value.add_(torch.randn_like(value) * (0.2 if "norm" in name else 0.05))
    module.to(special.get("_dtype", torch.float32))
    module.save_pretrained(path, max_shard_size=settings.get("_shard", "5GB"))
    if tokenizer:
        zoo = resolve_model("pydoc-llama")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(zoo / name, path / name)
    return path


def _edit_config(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / "config.json"
        config = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps(config))

    return damage


def _edit_weights(edit: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        edit(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    return damage


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _lose_shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    first = {name: tensors[name] for name in names[:5]}
    save_file(first, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    index = {name: f"model-0000{1 if name in first else 2}-of-00002.safetensors" for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def _climb_out(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _drop_norm(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.norm.weight"]


def _add_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_proj.scale"] = torch.ones(3)


def _reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(4, 4)


def _integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(72, dtype=torch.int8)


def _infinite(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"][3] = float("inf")


# Each way to damage a whole "float32" folder, and words its error message must hold.
DAMAGES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "no_config": (lambda f: (f / "config.json").unlink(), ("config.json", "is not a model")),
    "config_not_json": (_write("config.json", b"{"), ("config.json", "not valid JSON")),
    "generation_not_json": (
        _write("generation_config.json", b'{"eos_token_id": [1'),
        ("generation_config.json", "not valid JSON"),
    ),
    "config_is_a_list": (_write("config.json", b"[]"), ("config.json", "expected a JSON object")),
    "config_not_text": (_write("config.json", b"\xff\xfe{"), ("config.json", "not valid JSON")),
    "other_architecture": (
        _edit_config(architectures=["LlamaForMultipleChoice"]),
        ("'LlamaForMultipleChoice'", "is LlamaForCausalLM"),
    ),
    "no_architecture": (
        _edit_config(architectures=None),
        ("architectures = None", '["LlamaForCausalLM"]'),
    ),
    "class_of_another": (
        _edit_config(architectures=["Qwen2ForCausalLM"]),
        ("model_type 'llama'", "Qwen2ForCausalLM"),
    ),
    "quantized": (
        _edit_config(quantization_config={"bits": 4}),
        ("an unnamed method", "--quantize int8"),
    ),
    "huge_vocabulary": (_edit_config(vocab_size=10**12), ("vocab_size", "1000000000000")),
    "more_layers_than_weights": (_edit_config(num_hidden_layers=900), ("layer 899",)),
    "negative_size": (_edit_config(hidden_size=-72), ("hidden_size", "-72")),
    "other_vocabulary": (_edit_config(vocab_size=132), ("embed_tokens", "(132, 72)")),
    "heads_do_not_divide": (
        _edit_config(num_key_value_heads=4),
        ("num_key_value_heads", "divisor"),
    ),
    "huge_intermediate": (_edit_config(intermediate_size=10**8), ("mismatched", "100000000")),
    "no_context": (_edit_config(max_position_embeddings=2), ("context of 2", "at least 8")),
    "rope_without_factor": (
        _edit_config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4}),
        ("factor",),
    ),
    "size_as_text": (_edit_config(vocab_size="131"), ("vocab_size", "'131'")),
    "unknown_rope": (
        _edit_config(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}),
        ("spiral",),
    ),
    "adapter": (_write("adapter_config.json", b"{}"), ("adapter", "merge")),
    "no_weights": (lambda f: (f / "model.safetensors").unlink(), ("no weights", "safetensors")),
    "pickled": (_pickle_only, ("pytorch_model.bin", "pickle", "save_pretrained")),
    "truncated": (_truncate, ("model.safetensors", "not a valid safetensors file")),
    "empty_weights": (_write("model.safetensors", b""), ("it has 0 bytes",)),
    "huge_header": (
        _write("model.safetensors", struct.pack("<Q", 1 << 62) + b"{}"),
        ("header claims",),
    ),
    "header_not_json": (
        _write("model.safetensors", struct.pack("<Q", 4) + b"spam"),
        ("header is not JSON",),
    ),
    "lost_shard": (_lose_shard, ("model-00002-of-00002.safetensors", "1 of 2")),
    "path_in_index": (_climb_out, ("../other/model.safetensors", "plain")),
    "lost_tensor": (_edit_weights(_drop_norm), ("1 missing weights", "model.norm.weight")),
    "extra_tensor": (_edit_weights(_add_tensor), ("1 unexpected weights", "q_proj.scale")),
    "wrong_shape": (
        _edit_weights(_reshape),
        ("1 mismatched weights", "up_proj", "(100, 72)", "(4, 4)"),
    ),
    "integer_weights": (_edit_weights(_integers), ("int8", "model.norm.weight")),
    "infinite_weight": (_edit_weights(_infinite), ("model.norm.weight", "not finite")),
    "bad_tokenizer": (_write("tokenizer.json", b"{}"), ("tokenizer", "--tokens")),
}


def make_damaged_folder(path: Path, damage: str) -> Path:
    """Write a folder with one of `DAMAGES`."""
    folder = make_folder(path, num_hidden_layers=1)
    DAMAGES[damage][0](folder)
    return folder
