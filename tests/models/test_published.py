"""Folders of other class names compute what their publishers' formulas say, in float64."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tapml.models import load_model
from tapml_targets.errors import InputError
from tests.models.families import make_family

TOKENS = [3, 77, 12, 130, 0, 41, 41, 8, 99, 25, 63]
HEADS = 6


def _rotated(heads: Tensor) -> Tensor:
    """Rotary embedding of ``[heads, tokens, size]``, halves of a head as pairs."""
    half = heads.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(heads.shape[1], dtype=torch.float64)[:, None] * rates
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _slopes(count: int) -> list[float]:
    """ALiBi's slopes: a power for each head, every other one of twice as many for the rest."""
    whole = 2 ** math.floor(math.log2(count))
    found = [2 ** (-8 * (head + 1) / whole) for head in range(whole)]
    return found + (_slopes(2 * whole)[::2][: count - whole] if count > whole else [])


def _attended(
    query: Tensor, key: Tensor, value: Tensor, *, rotary: bool, groups: int = HEADS
) -> Tensor:
    count = len(query)
    heads = [each.view(count, n, -1).transpose(0, 1) for each, n in zip(
        (query, key, value), (HEADS, groups, groups), strict=True
    )]  # fmt: skip
    q, k, v = (each.repeat_interleave(HEADS // len(each), 0) for each in heads)
    if rotary:
        q, k = _rotated(q), _rotated(k)
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    if not rotary:
        slopes = torch.tensor(_slopes(HEADS), dtype=torch.float64)
        distance = torch.arange(count)[:, None] - torch.arange(count)
        scores = scores - slopes[:, None, None] * distance
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)


def _rms(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weights[f"{name}.weight"]


def _layer_norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _llama_names(
    w: dict[str, Tensor], norm: Callable[..., Tensor], *, rotary: bool, groups: int = HEADS
) -> Tensor:
    """InternLM, Baichuan and Orion, which have a Llama's names."""
    x = w["model.embed_tokens.weight"][TOKENS]
    for layer in range(2):
        path = f"model.layers.{layer}."
        attention = f"{path}self_attn."

        def linear(name: str, value: Tensor) -> Tensor:
            return value @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(1))

        h = norm(x, w, f"{path}input_layernorm")
        if f"{attention}W_pack.weight" in w:
            query, key, value = linear(f"{attention}W_pack", h).chunk(3, dim=-1)
        else:
            query, key, value = (linear(f"{attention}{n}_proj", h) for n in "qkv")
        mixed = _attended(query, key, value, rotary=rotary, groups=groups)
        x = x + linear(f"{attention}o_proj", mixed)
        h = norm(x, w, f"{path}post_attention_layernorm")
        gate = _silu(linear(f"{path}mlp.gate_proj", h))
        x = x + linear(f"{path}mlp.down_proj", gate * linear(f"{path}mlp.up_proj", h))
    return norm(x, w, "model.norm")


def _qwen(w: dict[str, Tensor]) -> Tensor:
    x = w["transformer.wte.weight"][TOKENS]
    for layer in range(2):
        path = f"transformer.h.{layer}."
        h = _rms(x, w, f"{path}ln_1")
        packed = h @ w[f"{path}attn.c_attn.weight"].T + w[f"{path}attn.c_attn.bias"]
        mixed = _attended(*packed.chunk(3, dim=-1), rotary=True)
        x = x + mixed @ w[f"{path}attn.c_proj.weight"].T
        h = _rms(x, w, f"{path}ln_2")
        gated = (h @ w[f"{path}mlp.w1.weight"].T) * _silu(h @ w[f"{path}mlp.w2.weight"].T)
        x = x + gated @ w[f"{path}mlp.c_proj.weight"].T
    return _rms(x, w, "transformer.ln_f") @ w["lm_head.weight"].T


def _internlm(w: dict[str, Tensor]) -> Tensor:
    return _llama_names(w, _rms, rotary=True) @ w["lm_head.weight"].T


def _orion(w: dict[str, Tensor]) -> Tensor:
    return _llama_names(w, _layer_norm, rotary=True, groups=2) @ w["lm_head.weight"].T


def _baichuan(w: dict[str, Tensor], *, rotary: bool) -> Tensor:
    head = w["lm_head.weight"]
    unit = head / head.square().sum(1, keepdim=True).sqrt()
    return _llama_names(w, _rms, rotary=rotary) @ unit.T


@pytest.mark.parametrize(
    ("family", "changes", "formula"),
    [
        ("internlm", {}, _internlm),
        ("orion", {}, _orion),
        ("qwen", {}, _qwen),
        ("baichuan", {}, lambda w: _baichuan(w, rotary=True)),
        ("baichuan", {"alibi": True}, lambda w: _baichuan(w, rotary=False)),
    ],
    ids=["internlm", "orion", "qwen", "baichuan-7b", "baichuan-13b"],
)
def test_a_folder_computes_its_publishers_formulas(
    tmp_path: Path, family: str, changes: dict[str, Any], formula: Callable[..., Tensor]
) -> None:
    folder = make_family(tmp_path / "model", family, **changes)
    weights = {n: t.double() for n, t in load_file(folder / "model.safetensors").items()}
    expected = formula(weights)
    with torch.no_grad():
        found = load_model(folder).module(torch.tensor([TOKENS])).logits[0].double()
    assert float((found - expected).abs().max() / expected.abs().max()) < 2e-6


def test_the_first_baichuans_head_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "baichuan", vocab_size=64000, num_hidden_layers=1)
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(load_model(folder).tensors()["lm_head.weight"], head)


def test_the_context_of_qwen_ends_where_its_scaling_by_length_begins(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "qwen")
    with pytest.raises(InputError, match="context of 100 tokens for model: expected 8 to 64"):
        load_model(folder, context_length=100)


@pytest.mark.parametrize(
    ("name", "message"),
    [("transformer.h.1.attn.c_attn.weight", r"k_proj.weight has shape \(0, 72\)"),
     ("transformer.h.1.mlp.w3.weight", r"mlp.w3.weight has shape .*the model has none")],
)  # fmt: skip
def test_weights_that_do_not_fit_are_named_with_both_shapes(
    tmp_path: Path, name: str, message: str
) -> None:
    from safetensors.torch import save_file

    file = make_family(tmp_path / "model", "qwen") / "model.safetensors"
    save_file({**load_file(file), name: torch.zeros(72, 72)}, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "model")


def test_quantized_weights_under_such_names_are_refused_with_a_way_out(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "internlm")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"is quantized \(gptq\).*--quantize int4"):
        load_model(folder)
