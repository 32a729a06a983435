"""JetMoe's rows take their experts' weights without being sorted by them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import JetMoeForCausalLM

from tapml.models.huggingface import load_model
from tests.models.families import make_family


def test_rows_that_stay_where_they_are_give_what_the_class_gives(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "jetmoe")
    own = JetMoeForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = torch.tensor([[5, 17, 99, 3, 42, 8, 61]])
    with torch.no_grad():
        expected = own(tokens).logits
        found = load_model(folder).module(tokens).logits
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
