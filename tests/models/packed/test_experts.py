"""Packed matrices of experts give what the class gives with the matrices unpacked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from tapml.models.huggingface import load_any
from tapml.models.packed.experts import PackedExperts
from tapml_targets.errors import InputError
from tests.models.families import make_family
from tests.models.packed.checkpoints import packed

GROUP = 32
SIZES = {"hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 1}
FAMILIES = {
    "mixtral": SIZES,
    "qwen2_moe": {**SIZES, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
}
TOKENS = torch.tensor([[5, 17, 99, 3, 42, 8, 61]])


def logits(module: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module(TOKENS).logits
    return found


def quantized(folder: Path, family: str, *, act_order: bool = False) -> tuple[Path, Path]:
    """A folder whose experts are packed one by one, and one with the same weights as floats.

    With `act_order` every expert but one has its columns in an order of its own.
    """
    floats = make_family(folder / "floats", family, **FAMILIES[family])
    codes_folder = folder / "codes"
    shutil.copytree(floats, codes_folder)
    random = np.random.default_rng(4)
    plain, stored = load_file(floats / "model.safetensors"), {}
    for name, value in plain.items():
        if ".experts." not in name:
            stored[name] = value
            continue
        path, (rows, columns) = name.removesuffix(".weight"), value.shape
        codes = random.integers(0, 16, (rows, columns))
        scales = random.uniform(0.01, 0.03, (rows, columns // GROUP)).astype(np.float16)
        group_of = np.arange(columns) // GROUP
        if act_order and ".experts.1." not in name:
            group_of = random.permutation(group_of)
            stored[f"{path}.weight_g_idx"] = group_of.astype(np.int32)
        plain[name] = ((codes - 8) * scales[:, group_of].astype(np.float32)).astype(np.float32)
        stored |= {
            f"{path}.weight_packed": packed(codes),
            f"{path}.weight_scale": scales,
            f"{path}.weight_shape": np.array([rows, columns], np.int64),
        }
    save_file(plain, floats / "model.safetensors", {"format": "pt"})
    save_file(stored, codes_folder / "model.safetensors", {"format": "pt"})
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": GROUP}
    packing = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    }
    config = json.loads((floats / "config.json").read_text())
    (codes_folder / "config.json").write_text(json.dumps(config | {"quantization_config": packing}))
    return codes_folder, floats


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_packed_experts_computes_what_its_floats_compute(
    tmp_path: Path, family: str, act_order: bool
) -> None:
    codes, floats = quantized(tmp_path, family, act_order=act_order)
    own = AutoModelForCausalLM.from_pretrained(floats, attn_implementation="eager").eval()
    module = load_any(codes).module
    kinds = [each for each in module.modules() if isinstance(each, PackedExperts)]
    assert {each.packed.bits for each in kinds} == {4}
    for part in kinds:
        everyone = torch.arange(part.get_parameter("codes").shape[0])
        assert torch.equal(part.packed.unpacked(), part[everyone].flatten(0, 1))
    expected = logits(own)
    assert (logits(module) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    codes, _ = quantized(tmp_path, "mixtral")
    tensors = load_file(codes / "model.safetensors")
    (lost,) = (n for n in tensors if ".experts.3." in n and n.endswith("w2.weight_packed"))
    del tensors[lost]
    save_file(tensors, codes / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"down_proj has 4 packed layers: expected 5"):
        load_any(codes)


@pytest.mark.parametrize("scheme", ["int8", "int4", "bf16"])
def test_experts_are_quantized_with_all_else(tmp_path: Path, scheme: str) -> None:
    folder = make_family(tmp_path / "model", "mixtral", **FAMILIES["mixtral"])
    before = sum(each.nbytes for each in load_any(folder).module.state_dict().values())
    module = load_any(folder, quantize=scheme).module
    after = sum(each.nbytes for each in module.state_dict().values())
    assert after < {"int8": 0.33, "int4": 0.24, "bf16": 0.55}[scheme] * before
    own = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    parts: Any = dict(module.named_modules())
    with torch.no_grad():
        for path, value in own.named_parameters():
            part = parts.get(path, parts.get(path.removesuffix(".weight")))
            if hasattr(part, "packed"):
                value.copy_(part.packed.unpacked().reshape(value.shape))
    expected = logits(own)
    assert (logits(module) - expected).abs().max() < 1e-5 * expected.abs().max()
