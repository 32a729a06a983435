"""What quantization costs is measured on the reference, and told apart from the backend's error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tapml.models.huggingface import load_any
from tapml.models.loaded import LoadedModel
from tapml.models.prompts import Prompt
from tapml.offload.quantization_error import quantization_error
from tapml.verdicts.modelwise import AllowedLogitError
from tapml.workloads.trace import CaseTrace, ReferenceTrace
from tests.models.folders import make_folder

TOKENS, CHOICES = (5, 17, 90, 3, 8), (11, 12)


def traced(model: LoadedModel) -> ReferenceTrace:
    """A run of the model over one prompt, as the reference records it."""
    with torch.no_grad():
        ids = torch.tensor([[*TOKENS, *CHOICES[:-1]]])
        logits = model.module(input_ids=ids, use_cache=False).logits[0].numpy()
    return ReferenceTrace((CaseTrace(Prompt(TOKENS), CHOICES, logits, AllowedLogitError(0, 0, 0)),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "llama", "one_layer")


def load(folder: Path, quantize: str) -> LoadedModel:
    """A decoder."""
    model = load_any(folder, quantize=quantize)
    assert isinstance(model, LoadedModel)
    return model


def test_fewer_bits_cost_more(folder: Path) -> None:
    found = {}
    for scheme in ("fp16", "int8", "int4"):
        model = load(folder, scheme)
        error = quantization_error(model, traced(model))
        assert error is not None
        assert error.positions == len(TOKENS) + len(CHOICES) - 1
        assert error.scheme in error.text
        found[scheme] = error
    assert 0 < found["fp16"].mean_kl < found["int8"].mean_kl < found["int4"].mean_kl
    assert found["int4"].mean_kl <= found["int4"].max_kl
    assert abs(found["fp16"].perplexity / found["fp16"].float_perplexity - 1) < 0.01


def test_perplexity_is_that_of_the_prompts_tokens(folder: Path) -> None:
    model = load(folder, "int4")
    error = quantization_error(model, traced(model))
    assert error is not None
    floats = load(folder, "").module
    with torch.no_grad():
        ids = torch.tensor([TOKENS])
        loss = floats(input_ids=ids, labels=ids, use_cache=False).loss
    np.testing.assert_allclose(error.float_perplexity, float(loss.exp()), rtol=1e-5)


def test_without_floats_it_is_not_known_and_without_quantization_there_is_none(
    folder: Path,
) -> None:
    model = load(folder, "int4")
    error = quantization_error(replace(model, floats=None), traced(model))
    assert error is not None
    assert error.positions == 0
    assert "not known" in error.text
    assert quantization_error(load(folder, ""), traced(model)) is None
