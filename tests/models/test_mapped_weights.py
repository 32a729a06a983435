"""Models that take much of the memory: their weights are pages of a file."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.table_three import shape_of, write_packed_weights
from tapml.models import load_model, mapped_weights
from tapml.models.mapped_weights import BOUND
from tapml.models.packed.modules import PackedLinear
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


def test_a_file_is_forgotten_with_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOUND, "0")
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    gc.collect()
    # Those of other tests may go meanwhile.
    before = {id(each) for each in mapped_weights._mapped}
    model = load_model(write(tmp_path / "model", torch.float32, tied=False))
    own = {id(each) for each in mapped_weights._mapped} - before
    assert own
    del model
    gc.collect()
    assert not own & {id(each) for each in mapped_weights._mapped}


def test_packed_weights_in_our_own_layout_stay_in_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packed_weights(shape_of(32, 1), tmp_path)
    read = load_model(tmp_path)
    monkeypatch.setenv(BOUND, "0")
    gc.collect()
    before = len(mapped_weights._mapped)
    mapped = load_model(tmp_path)
    assert len(mapped_weights._mapped) == before + 1
    assert mapped.weights_hash == read.weights_hash
    codes = mapped.module.get_parameter("model.layers.0.mlp.up_proj.codes")
    assert codes.data_ptr() % 64 == 0
    with torch.no_grad():
        logits = mapped.module(torch.tensor([[1, 2, 3]])).logits
        assert torch.equal(logits, read.module(torch.tensor([[1, 2, 3]])).logits)
    assert bool(logits.isfinite().all())
    # Codes are around 7, so that the mean of a matrix is about zero.
    layer = mapped.module.get_submodule("model.layers.0.mlp.up_proj")
    assert isinstance(layer, PackedLinear)
    assert abs(float(layer.weight.mean())) < 0.1 * float(layer.weight.std())


def test_a_bound_that_is_no_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOUND, "4G")
    with pytest.raises(InputError, match=r"TAPML_MAP_WEIGHTS=4G: expected a number of bytes"):
        load_model(write(tmp_path / "model", torch.float32, tied=False))
