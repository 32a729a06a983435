"""The Llama with a running mean beside its attention: a folder like any other, and right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tapml.models import LoadedModel, load_model
from tapml.models.scan_llama import ScanAttention
from tapml_targets.errors import InputError
from tests.models.folders import make_folder
from tests.models.running import EagerRunner

TOKENS = (5, 17, 99, 3, 42, 8, 130, 64, 21)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("scan") / "model", "scan_llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(folder, context_length=24)


def attention_of(model: LoadedModel) -> ScanAttention:
    attention = model.module.model.layers[0].self_attn  # type: ignore[union-attr, index]
    assert isinstance(attention, ScanAttention)
    return attention


def test_a_folder_brings_no_code_and_is_found_by_its_type(folder: Path, model: LoadedModel) -> None:
    assert json.loads((folder / "config.json").read_text())["model_type"] == "scan_llama"
    assert not list(folder.glob("*.py"))
    assert [state.name for state in model.entry_modules()[0].state] == [
        f"cache.{layer}.{kind}" for layer in range(2) for kind in ("key", "value")
    ]


def test_the_mean_is_over_everything_up_to_the_token(model: LoadedModel) -> None:
    attention = attention_of(model)
    value = torch.randn(1, 2, 24, 12, generator=torch.Generator().manual_seed(3))
    positions = torch.tensor([[0, 4, 23]], dtype=torch.int32)
    found = attention._running_mean(value, positions)[0]
    for index, position in enumerate(positions[0].tolist()):
        for head in range(6):
            mean = value[0, head // 3, : position + 1].double().mean(0)
            expected = attention.mean_gate[head].double() * mean
            torch.testing.assert_close(found[index, head].double(), expected, rtol=0, atol=1e-6)


def test_a_prompt_in_pieces_gives_the_same_logits(model: LoadedModel) -> None:
    whole = EagerRunner(model).run(TOKENS)
    runner = EagerRunner(model)
    pieces = [runner.run(TOKENS[:1]), runner.run(TOKENS[1:4]), runner.run(TOKENS[4:])]
    assert np.abs(np.concatenate(pieces, axis=1) - whole).max() <= 1e-5


def test_the_entries_equal_transformers_without_a_cache(model: LoadedModel) -> None:
    with torch.no_grad():
        expected = model.module(torch.tensor([TOKENS]), use_cache=False).logits.numpy()
    assert np.abs(EagerRunner(model).run(TOKENS) - expected).max() <= 1e-5


def test_with_closed_gates_it_equals_a_llama(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    llama = make_folder(tmp_path / "llama")
    plain = {name: value for name, value in weights.items() if "mean_gate" not in name}
    save_file(plain, llama / "model.safetensors", metadata={"format": "pt"})
    shut = make_folder(tmp_path / "shut", "scan_llama")
    zeros = {
        name: torch.zeros_like(value) if "mean_gate" in name else value
        for name, value in weights.items()
    }
    save_file(zeros, shut / "model.safetensors", metadata={"format": "pt"})
    opened, expected, found = (
        EagerRunner(load_model(each)).run(TOKENS) for each in (folder, llama, shut)
    )
    assert np.abs(found - expected).max() <= 1e-5
    assert np.abs(opened - expected).max() > 0.01


def test_a_folder_without_gates_is_refused(folder: Path, tmp_path: Path) -> None:
    damaged = make_folder(tmp_path / "damaged", "scan_llama")
    weights = load_file(damaged / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "mean_gate" not in name}
    save_file(kept, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"missing weights, first model.*mean_gate"):
        load_model(damaged)
