"""Every format of quantized files on every platform writes what its dequantized weights write."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.carved_model import compile_all
from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.execute.plan_runner import PlanRunner
from tapml.importing.importer import import_model
from tapml.models.gguf.blocks import KINDS
from tapml.models.huggingface import load_model
from tapml.package.in_process import open_in_process
from tapml_targets.platforms import platform_names
from tapml_targets.ranking import default_device
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.models.gguf import written
from tests.models.gguf.test_gguf import own_llama
from tests.models.packed.checkpoints import AWQ_ORDER, packed

Array = np.ndarray[Any, Any]
PLATFORMS = [name for name in platform_names() if name != "cpu"]
PROMPT, TOKENS = [5, 17, 33, 2, 90, 64, 7], 10


class Form(NamedTuple):
    """A format and its settings; `size` -1 is one group for a row."""

    method: str
    bits: int = 4
    size: int = 32
    symmetric: bool = True
    ordered: bool = False
    version: int = 1


# Rows have 96 or 160 columns: groups of 24, 40, 64 and 128 leave a shorter one at the end.
FORMS = {
    "gptq, 8 bits": Form("gptq", 8),
    "gptq v2, 8 bits, asymmetric, act-order": Form("gptq", 8, 32, False, True, 2),
    "gptq, 8 bits, a group for a row": Form("gptq", 8, -1),
    "gptq, asymmetric, act-order": Form("gptq", 4, 32, False, True),
    "gptq, asymmetric, act-order, groups of 64": Form("gptq", 4, 64, False, True),
    "gptq, a group for a row, act-order": Form("gptq", 4, -1, True, True),
    "gptq v2, groups of 128": Form("gptq", 4, 128, version=2),
    "gptq, asymmetric, groups of 40": Form("gptq", 4, 40, False),
    "awq": Form("awq", symmetric=False),
    "awq, a group for a row": Form("awq", 4, -1, False),
    "awq, groups of 64": Form("awq", 4, 64, False),
    "awq, symmetric, groups of 128": Form("awq", 4, 128),
    "awq, groups of 24": Form("awq", 4, 24, False),
    "compressed-tensors, 8 bits": Form("compressed-tensors", 8),
    "compressed-tensors, 8 bits, asymmetric": Form("compressed-tensors", 8, 32, False, True),
    "compressed-tensors, 8 bits, by rows": Form("compressed-tensors", 8, -1),
    "compressed-tensors, asymmetric, groups of 24": Form("compressed-tensors", 4, 24, False, True),
    "compressed-tensors, asymmetric, by rows": Form("compressed-tensors", 4, -1, False),
}


def quantized(matrix: Array, form: Form, seed: int) -> tuple[Array, Array, Array, Array]:
    """Codes ``[N, K]``, scales and zeros ``[N, groups]``, and the group of each column."""
    rows, columns = matrix.shape
    group_of = np.arange(columns) // (columns if form.size == -1 else min(form.size, columns))
    if form.ordered:
        group_of = np.random.default_rng(seed).permutation(group_of)
    top, count = (1 << form.bits) - 1, int(group_of.max()) + 1
    codes = np.zeros((rows, columns), np.int64)
    scales, zeros = np.zeros((rows, count), np.float16), np.zeros((rows, count), np.int64)
    for group in range(count):
        part = matrix[:, group_of == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if form.symmetric:
            low, high = -np.abs(part).max(1), np.abs(part).max(1)
        scale = np.maximum((high - low) / top, 1e-4).astype(np.float16)
        zero = np.clip(np.round(-low / scale), 0, top).astype(np.int64)
        zeros[:, group] = 1 << form.bits - 1 if form.symmetric else zero
        scales[:, group] = scale
        moved = np.round(part / scale[:, None].astype(np.float32)) + zeros[:, group : group + 1]
        codes[:, group_of == group] = np.clip(moved, 0, top)
    return codes, scales, zeros, group_of


def tensors_of(form: Form, codes: Array, scales: Array, zeros: Array, group: Array) -> Any:
    """A layer's tensors in a format."""
    places = tuple(range(32 // form.bits))
    if form.method == "gptq":
        stored = (zeros - 1) % (1 << form.bits) if form.version == 1 else zeros
        found = {
            "qweight": np.ascontiguousarray(packed(codes, places).T),
            "qzeros": packed(stored.T, places),
            "scales": np.ascontiguousarray(scales.T),
            "g_idx": group.astype(np.int32),
        }
    elif form.method == "awq":
        found = {
            "qweight": packed(codes.T, AWQ_ORDER),
            "qzeros": packed(zeros.T, AWQ_ORDER),
            "scales": np.ascontiguousarray(scales.T),
        }
    else:
        found = {
            "weight_packed": packed(codes, places),
            "weight_scale": scales,
            "weight_shape": np.array(codes.shape, np.int64),
        }
        if not form.symmetric:
            found["weight_zero_point"] = np.ascontiguousarray(packed(zeros.T, places).T)
        if form.ordered:
            found["weight_g_idx"] = group.astype(np.int32)
    return {name: torch.from_numpy(each) for name, each in found.items()}


def config_of(form: Form) -> dict[str, Any]:
    if form.method == "compressed-tensors":
        size = None if form.size == -1 else form.size
        weights = {
            **{"num_bits": form.bits, "type": "int", "symmetric": form.symmetric},
            **{"group_size": size, "strategy": "channel" if size is None else "group"},
        }
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        more: dict[str, Any] = {"format": "pack-quantized", "config_groups": groups}
        return {"quant_method": form.method, "ignore": ["lm_head"], **more}
    common = {"quant_method": form.method, "bits": form.bits, "group_size": form.size}
    if form.method == "awq":
        return {**common, "version": "gemm", "zero_point": not form.symmetric}
    kind = "gptq" if form.version == 1 else "gptq_v2"
    return {**common, "desc_act": form.ordered, "sym": form.symmetric, "checkpoint_format": kind}


def write_folder(folder: Path, form: Form) -> LlamaForCausalLM:
    """A small Llama with quantized layers; transformers' class with what the codes stand for."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.12,
        tie_word_embeddings=False,
    )
    module = LlamaForCausalLM(config).eval()
    stored: dict[str, torch.Tensor] = {}
    for seed, (name, value) in enumerate(module.state_dict().items()):
        if not name.endswith("proj.weight"):
            stored[name] = value.half()
            value.copy_(stored[name].float())
            continue
        codes, scales, zeros, group_of = quantized(value.numpy(), form, seed)
        meant = scales.astype(np.float32)[:, group_of] * (codes - zeros[:, group_of])
        value.copy_(torch.from_numpy(meant.astype(np.float32)))
        parts = tensors_of(form, codes, scales, zeros, group_of)
        stored |= {name.replace("weight", end): each for end, each in parts.items()}
    folder.mkdir()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    given = config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float16"}
    packing = {"quantization_config": config_of(form)}
    (folder / "config.json").write_text(json.dumps(given | packing))
    return module


def assert_same_tokens(path: Path, module: Any, platform: str) -> None:
    """The plan, on a device, gives the module's logits and tokens."""
    model = load_model(path, dtype="float32")
    imported = import_model(model)
    device = default_device(platform)
    target = Target(platform, limits=device.limits)
    text = list(PROMPT)
    with Compiler() as compiler, ExitStack() as stack:
        compiled = compile_all(compiler, imported.plan.operators.values(), target)
        library = link_entries(imported.plan, compiled)
        session = stack.enter_context(open_in_process(device))
        runner = PlanRunner(imported.plan, imported.weights, library, session)
        stack.enter_context(runner)
        runner.reset()
        outputs = runner.run("prefill", model.prepare_prefill(PROMPT, 0))
        for _ in range(TOKENS):
            with torch.no_grad():
                expected = module(torch.tensor([text])).logits[0, -1].numpy()
            (logits,) = outputs.values()
            got = logits.reshape(-1, logits.shape[-1])[-1]
            np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())
            assert got.argmax() == expected.argmax()
            outputs = runner.run("decode", model.prepare_decode(int(got.argmax()), len(text)))
            text.append(int(got.argmax()))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("form", FORMS)
def test_a_folder_writes_what_its_dequantized_weights_write(
    tmp_path: Path, require_device: RequireDevice, form: str, platform: str
) -> None:
    require_device(platform)
    module = write_folder(tmp_path / "model", FORMS[form])
    assert_same_tokens(tmp_path / "model", module, platform)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("kind", [*KINDS, "F16", "BF16", "F32"])
def test_a_gguf_file_writes_what_its_dequantized_weights_write(
    tmp_path: Path,
    require_device: RequireDevice,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    platform: str,
) -> None:
    require_device(platform)
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    values = written.write_llama(tmp_path / "small.gguf", kind)
    assert_same_tokens(tmp_path / "small.gguf", own_llama(values), platform)
