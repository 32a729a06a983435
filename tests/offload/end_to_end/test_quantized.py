"""A quantized model moves with its weights packed, and ships like that.

An encoder, because it has one entry; tests/offload/exhaustive/test_quantized.py has decoders with
every scheme and format on every platform, and wrong kernels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from tapml.models.huggingface import load_any
from tests.conftest import RequireDevice
from tests.offload.commands import run_here
from tests.offload.sessions import read_report, states
from tests.offload.warm_cache import warm_cache

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}
PROMPT = [5, 17, 90, 3]


def make_llama(folder: Path) -> Path:
    """A folder with float weights whose rows fill groups of 32."""
    torch.manual_seed(11)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    return folder


def moved(
    model: Path,
    folder: Path,
    require_device: RequireDevice,
    platform: str,
    *options: str,
    own_libraries: bool = False,
) -> dict[str, object]:
    """The report of a migration by the real command; every operator is on the target.

    `own_libraries` is that of :func:`warm_cache`.
    """
    device = f"{platform}:{min(each.index for each in require_device(platform))}"
    ended = run_here(
        *("offload", "--model", model, "--device", device, "--session", folder / "session"),
        *("--tokens", " ".join(map(str, PROMPT)), "--new-tokens", "2", "--quiet"),
        *("--strategy", "bisect", *options),
        cache=warm_cache(folder / "cache", own_libraries=own_libraries),
    )
    assert ended.exit_code == 0, ended.output + ended.errors
    assert set(states(folder / "session").values()) == {"moved"}
    return read_report(folder / "session")


def test_a_quantized_encoder_moves_packed_and_ships_packed(
    tmp_path: Path, require_device: RequireDevice
) -> None:
    torch.manual_seed(12)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    model = tmp_path / "bert"
    BertModel(
        BertConfig(**sizes, vocab_size=96, num_attention_heads=4, max_position_embeddings=32)
    ).save_pretrained(model)
    device = f"opencl:{min(each.index for each in require_device('opencl'))}"
    session, package = tmp_path / "session", tmp_path / "package"
    cache = warm_cache(tmp_path / "cache")
    ended = run_here(
        *("offload", "--model", model, "--device", device, "--session", session),
        *("--tokens", "3 4 5 6 7", "--quantize", "int4", "--quiet", "--strategy", "bisect"),
        cache=cache,
    )
    assert ended.exit_code == 0, ended.output + ended.errors
    assert set(states(session).values()) == {"moved"}
    assert sum("unpack_4_bits" in name and "matmul" in name for name in states(session)) > 1
    report: Any = read_report(session)
    assert report["quantization"]["scheme"] == "int4"
    assert report["final"]["status"] == "pass"

    assert run_here("package", session, "-o", package, cache=cache).exit_code == 0
    weights, floats = (
        load_file(package / "weights.safetensors"),
        load_file(model / "model.safetensors"),
    )
    assert sum(w.nbytes for w in weights.values()) <= 0.35 * sum(f.nbytes for f in floats.values())
    ended = run_here("run", package, "--tokens", "3 4 5 6 7", "--json", cache=cache)
    assert ended.exit_code == 0, ended.errors
    rows = np.array(json.loads(ended.output)["rows"])
    quantized = load_any(model, quantize="int4").module
    with torch.no_grad():
        states_ = quantized(input_ids=torch.tensor([[3, 4, 5, 6, 7]]))[0][0].numpy()
    expected = np.concatenate([states_.mean(0)[None], states_])
    assert np.abs(rows - expected).max() < 1e-5 * np.abs(expected).max()
