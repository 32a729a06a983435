"""An mlc-llm folder of q4f16_1 is a model; its layout is written here independently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tapml.models.huggingface import load_model
from tapml_targets.errors import InputError

Array = np.ndarray[Any, Any]

WIDTH, INNER, HEADS, GROUPS, WORDS = 64, 96, 4, 2, 40
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "num_hidden_layers": 1,
    "vocab_size": WORDS,
}
HEAD = WIDTH // HEADS


def quantized(random: np.random.Generator, rows: int, columns: int) -> tuple[Array, Array, Array]:
    """Words, scales, and the matrix that they stand for, code by code."""
    words = random.integers(0, 1 << 32, (rows, columns // 8), np.uint32)
    scales = random.uniform(0.005, 0.02, (rows, columns // 32)).astype(np.float16)
    matrix = np.zeros((rows, columns), np.float32)
    for n, k in np.ndindex(rows, columns):
        code = int(words[n, k // 8]) >> (4 * (k % 8)) & 15
        matrix[n, k] = np.float32(code - 7) * np.float32(scales[n, k // 32])
    return words, scales, matrix


def write(folder: Path) -> dict[str, Array]:
    """A folder of one layer; the float32 weights under transformers' names."""
    folder.mkdir()
    random = np.random.default_rng(4)
    layer = "model.layers.0"
    keys = GROUPS * HEAD
    fused = {
        "model.embed_tokens": (WORDS, WIDTH),
        "lm_head": (WORDS, WIDTH),
        f"{layer}.self_attn.qkv_proj": (WIDTH + 2 * keys, WIDTH),
        f"{layer}.self_attn.o_proj": (WIDTH, WIDTH),
        f"{layer}.mlp.gate_up_proj": (2 * INNER, WIDTH),
        f"{layer}.mlp.down_proj": (WIDTH, INNER),
    }
    stored: dict[str, Array] = {}
    own: dict[str, Array] = {}
    for path, (rows, columns) in fused.items():
        words, scales, matrix = quantized(random, rows, columns)
        stored |= {f"{path}.q_weight": words, f"{path}.q_scale": scales}
        begin = path.rpartition(".")[0]
        if path.endswith("qkv_proj"):
            own[f"{begin}.q_proj.weight"] = matrix[:WIDTH]
            own[f"{begin}.k_proj.weight"] = matrix[WIDTH : WIDTH + keys]
            own[f"{begin}.v_proj.weight"] = matrix[WIDTH + keys :]
        elif path.endswith("gate_up_proj"):
            own[f"{begin}.gate_proj.weight"] = matrix[:INNER]
            own[f"{begin}.up_proj.weight"] = matrix[INNER:]
        else:
            own[f"{path}.weight"] = matrix
    for name in ("input_layernorm", "post_attention_layernorm"):
        stored[f"{layer}.{name}.weight"] = np.ones(WIDTH, np.float16)
    stored["model.norm.weight"] = np.full(WIDTH, 0.5, np.float16)
    own |= {n: each.astype(np.float32) for n, each in stored.items() if n.endswith("norm.weight")}
    data, records = b"", []
    for name, each in stored.items():
        shape, dtype = list(each.shape), each.dtype.name
        records.append(
            {
                "name": name,
                "shape": shape,
                "dtype": dtype,
                "format": "raw",
                "nbytes": each.nbytes,
                "byteOffset": len(data),
            }
        )
        data += each.tobytes()
    shard = {"dataPath": "params_shard_0.bin", "format": "raw-shard", "records": records}
    (folder / "params_shard_0.bin").write_bytes(data)
    (folder / "tensor-cache.json").write_text(json.dumps({"metadata": {}, "records": [shard]}))
    chat = {
        "model_type": "llama",
        "quantization": "q4f16_1",
        "model_config": {**SIZES, "rms_norm_eps": 1e-5, "context_window_size": 64},
    }
    (folder / "mlc-chat-config.json").write_text(json.dumps(chat))
    return own


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))


def test_a_folder_computes_what_transformers_computes_with_its_weights(tmp_path: Path) -> None:
    own = write(tmp_path / "small-MLC")
    model = load_model(tmp_path / "small-MLC")
    assert model.quantization == "mlc q4f16_1"
    plain = LlamaForCausalLM(LlamaConfig(**SIZES, rms_norm_eps=1e-5)).eval()
    plain.load_state_dict({name: torch.from_numpy(np.array(each)) for name, each in own.items()})
    for name, matrix in own.items():
        if name.endswith("_proj.weight"):
            layer: Any = model.module.get_submodule(name.removesuffix(".weight"))
            assert torch.equal(layer.packed.unpacked(), torch.from_numpy(matrix))
    tokens = torch.arange(9).unsqueeze(0)
    with torch.no_grad():
        ours = model.module(input_ids=tokens, use_cache=False).logits
        want = plain(input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(ours, want, rtol=0.0, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("mlc-chat-config.json", "q4f16_1", "q3f16_1", "'q3f16_1': expected q4f16_1.*--quantize"),
        ("mlc-chat-config.json", '"llama"', '"rwkv6"', "model_type 'rwkv6': expected one of llama"),
        ("mlc-chat-config.json", '"intermediate_size": 96', '"intermediate_size": 64', "192 rows"),
        ("tensor-cache.json", "params_shard_0", "../params_shard_0", "does not list tensors"),
        ("tensor-cache.json", '"shape": [64]', '"shape": [128]', "is cut short"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    file: str, old: str, new: str, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "small-MLC"
    write(folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(InputError, match=said):
        load_model(folder)


def test_a_shard_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write(tmp_path / "small-MLC")
    shard = tmp_path / "small-MLC" / "params_shard_0.bin"
    shard.write_bytes(shard.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"params_shard_0.bin is cut short"):
        load_model(tmp_path / "small-MLC")
