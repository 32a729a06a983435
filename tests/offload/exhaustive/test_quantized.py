"""Every scheme and format on every platform, and wrong kernels traced to their operators."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tapml.models.huggingface import load_any
from tapml.plan import format as plan_format
from tapml_targets.library import Library
from tapml_targets.platforms import platform_names
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.models.packed.checkpoints import word
from tests.offload.commands import run_here
from tests.offload.end_to_end.test_quantized import PROMPT, make_llama, moved
from tests.offload.plants import Plant, edit, plant
from tests.offload.sessions import read_report, states

PLATFORMS = [name for name in platform_names() if name != "cpu"]
GROUP = 32


def test_a_quantized_model_moves_packed_and_both_its_errors_are_told(
    tmp_path: Path, require_device: RequireDevice
) -> None:
    model = make_llama(tmp_path / "llama")
    report = moved(model, tmp_path, require_device, "opencl", "--quantize", "int4")
    quantization, final = report["quantization"], report["final"]
    assert isinstance(quantization, dict)
    assert isinstance(final, dict)
    # What four bits cost, against what the target adds.
    assert quantization["scheme"] == "int4"
    assert quantization["positions"] == len(PROMPT) + 1
    assert 1e-4 < quantization["mean_kl"] <= quantization["max_kl"]
    assert quantization["perplexity"] > 1
    assert final["status"] == "pass"
    assert final["logits"]["mean_kl"] < 1e-6 * quantization["mean_kl"]
    names = states(tmp_path / "session")
    assert not any(name.startswith("fused_matmul_transposed") for name in names)
    assert sum("unpack" in name and "matmul" in name for name in names) > 1

    package, cache = tmp_path / "package", tmp_path / "cache"
    made = run_here("package", tmp_path / "session", "-o", package, cache=cache)
    assert made.exit_code == 0, made.errors
    weights = load_file(package / "weights.safetensors")
    floats = load_file(model / "model.safetensors")
    assert sum(w.nbytes for w in weights.values()) <= 0.35 * sum(f.nbytes for f in floats.values())
    tokens = " ".join(map(str, PROMPT))
    ended = run_here("run", package, "--tokens", tokens, "--json", cache=cache)
    assert ended.exit_code == 0, ended.errors
    module = load_any(model, quantize="int4").module
    expected = list(PROMPT)
    for token in json.loads(ended.output)["tokens"][:6]:
        with torch.no_grad():
            logits = module(input_ids=torch.tensor([expected]), use_cache=False).logits[0, -1]
        expected.append(int(logits.argmax()))
        assert token == expected[-1]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("scheme", ["int8", "int4", "fp16", "bf16"])
def test_a_scheme_moves(
    tmp_path: Path, require_device: RequireDevice, scheme: str, platform: str
) -> None:
    model = make_llama(tmp_path / "llama")
    report = moved(model, tmp_path, require_device, platform, "--quantize", scheme)
    quantization: Any = report["quantization"]
    assert quantization["scheme"] == scheme
    assert quantization["positions"] == len(PROMPT) + 1


def words(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Eight neighbours of the last axis to a word."""
    rows = [[word(row[at : at + 8]) for at in range(0, len(row), 8)] for row in codes.tolist()]
    return np.array(rows, np.int32)


def gptq(name: str, random: np.random.Generator, n: int, k: int) -> dict[str, Any]:
    """A layer with its columns in any order."""
    codes, zeros = random.integers(0, 16, (n, k)), random.integers(4, 12, (n, k // GROUP))
    return {
        f"{name}.qweight": np.ascontiguousarray(words(codes).T),
        f"{name}.qzeros": words((zeros - 1).T % 16),
        f"{name}.scales": random.uniform(0.01, 0.03, (k // GROUP, n)).astype(np.float16),
        f"{name}.g_idx": random.permutation(np.arange(k) // GROUP).astype(np.int32),
    }


def awq(name: str, random: np.random.Generator, n: int, k: int) -> dict[str, Any]:
    """A layer of random words: every word is eight codes."""
    high, shape = 1 << 31, (k // GROUP, n // 8)
    return {
        f"{name}.qweight": random.integers(-high, high, (k, n // 8), np.int32),
        f"{name}.qzeros": np.full(shape, word([8] * 8), np.int32),
        f"{name}.scales": random.uniform(0.01, 0.03, (k // GROUP, n)).astype(np.float16),
    }


def compressed(name: str, random: np.random.Generator, n: int, k: int) -> dict[str, Any]:
    """A symmetric layer."""
    return {
        f"{name}.weight_packed": words(random.integers(0, 16, (n, k))),
        f"{name}.weight_scale": random.uniform(0.01, 0.03, (n, k // GROUP)).astype(np.float16),
        f"{name}.weight_shape": np.array([n, k], np.int64),
    }


FORMATS: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "compressed-tensors": (
        compressed,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {
                    "weights": {
                        "num_bits": 4,
                        "type": "int",
                        "symmetric": True,
                        "group_size": GROUP,
                    }
                }
            },
        },
    ),
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_format_moves_and_its_quantization_error_is_not_known(
    tmp_path: Path, require_device: RequireDevice, form: str, platform: str
) -> None:
    model = make_llama(tmp_path / "llama")
    write, packing = FORMATS[form]
    random = np.random.default_rng(8)
    tensors: dict[str, Any] = {}
    for name, value in load_file(model / "model.safetensors").items():
        path = name.removesuffix(".weight")
        tensors |= write(path, random, *value.shape) if "_proj" in name else {name: value}
    save_file(tensors, model / "model.safetensors")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"quantization_config": packing}))
    report: Any = moved(model, tmp_path, require_device, platform)
    assert report["quantization"]["scheme"] == form
    assert "not known" in report["quantization"]["text"]
    assert report["final"]["status"] == "pass"


FAULTS: dict[str, Callable[[Library], Library]] = {
    "wrong group": edit(r"\* (input_1_ptr\[\()", r"* \g<1>1 ^ "),
    "wrong zero point": edit(r"- input_2_ptr", "- 1.0f - input_2_ptr"),
    "swapped nibbles": edit(r"input_0_local_ptr\[0\] >> 0\)", "input_0_local_ptr[0] >> 4)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_traced_to_its_operator(
    tmp_path: Path, require_device: RequireDevice, fault: str
) -> None:
    model = make_llama(tmp_path / "llama")
    moved(model, tmp_path, require_device, "opencl", "--quantize", "int4", own_libraries=True)
    before = read_report(tmp_path / "session")
    name = next(
        each["name"]
        for each in before["operators"]
        if "unpack_4_bits_matmul" in each["name"] and "decode" in each["entries"]
    )
    finished = (tmp_path / "session" / "finished" / "plan.msgpack").read_bytes()
    plan = plan_format.unpack(finished)
    device = f"opencl:{min(each.index for each in require_device('opencl'))}"
    target = target_of(device)
    wrong = Plant(name, "model.layers.0", FAULTS[fault], "")
    plant(wrong, plan.operators[name], target, tmp_path / "cache")
    shutil.rmtree(tmp_path / "session")
    ended = run_here(
        *("offload", "--model", model, "--device", device, "--session", tmp_path / "session"),
        *("--tokens", " ".join(map(str, PROMPT)), "--new-tokens", "2", "--quantize", "int4"),
        "--keep-going",
        cache=tmp_path / "cache",
    )
    assert ended.exit_code == 1, ended.output
    failed = [each for each, state in states(tmp_path / "session").items() if state == "failed"]
    assert failed == [name]


def target_of(device: str) -> Target:
    """The target that a session of this device compiles for."""
    from tapml_rpc.local import open_local

    with open_local(device) as session:
        return Target("opencl", limits=session.device.limits)
