"""Models that take much of the memory: their weights are pages of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tapml.models import load_model
from tapml.models.mapped_weights import BOUND
from tapml_targets.errors import InputError


def write(folder: Path, dtype: torch.dtype, *, tied: bool) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=tied,
        eos_token_id=7,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder, max_shard_size="20KB")
    return folder


@pytest.mark.parametrize(
    ("dtype", "tied"), [(torch.float32, False), (torch.bfloat16, True), (torch.float16, False)]
)
def test_a_mapped_model_is_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tied: bool
) -> None:
    folder = write(tmp_path / "model", dtype, tied=tied)
    read = load_model(folder)
    monkeypatch.setenv(BOUND, "0")
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    mapped = load_model(folder)
    assert mapped.weights_hash == read.weights_hash
    assert mapped.end_tokens == read.end_tokens
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(mapped.module(tokens).logits, read.module(tokens).logits)
    embedding = mapped.module.get_parameter("model.embed_tokens.weight")
    head = mapped.module.get_parameter("lm_head.weight")
    assert (embedding is head) == tied
    assert list((tmp_path / "cache" / "mapped").iterdir())
    assert embedding.data_ptr() % 64 == 0


def test_a_bound_that_is_no_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOUND, "4G")
    with pytest.raises(InputError, match=r"TAPML_MAP_WEIGHTS=4G: expected a number of bytes"):
        load_model(write(tmp_path / "model", torch.float32, tied=False))
