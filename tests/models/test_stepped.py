"""Decoders whose layers keep other state than keys and values: one entry, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tapml.compiler.reference import compile_reference
from tapml.execute.executor import Executor
from tapml.execute.generate import greedy
from tapml.importing.importer import import_model
from tapml.models import load_model
from tapml.models.stepped import LoadedStepped
from tapml.models.stored import read_stored
from tapml.rooting.own_forward import root_wrapper
from tapml.rooting.rooting import root
from tapml.workloads import workload_of
from tests.models.other_models import OTHERS, make_other


def folder_of(path: Path, architecture: str) -> Path:
    return make_other(path, next(each for each in OTHERS if each.architecture == architecture))


# A recurrence alone; with attention in other layers; both in each layer.
@pytest.mark.parametrize(
    ("architecture", "state"),
    [
        ("MambaForCausalLM", {"convolution", "recurrent"}),
        ("JambaForCausalLM", {"convolution", "recurrent", "key", "value"}),
        ("FalconH1ForCausalLM", {"convolution", "recurrent", "key", "value"}),
    ],
)
def test_tokens_one_by_one_compute_what_the_class_computes_of_all(
    tmp_path: Path, architecture: str, state: set[str]
) -> None:
    model = load_model(folder_of(tmp_path / "model", architecture))
    assert isinstance(model, LoadedStepped)
    assert {name.split(".")[2] for name in model.state_shapes} == state
    assert root_wrapper(model) < 1e-5
    assert read_stored(model.stored.to_json()) == model.stored


def test_its_plan_has_decode_alone_and_writes_what_the_class_writes(tmp_path: Path) -> None:
    model: Any = load_model(folder_of(tmp_path / "model", "Lfm2ForCausalLM"))
    imported = import_model(model)
    assert list(imported.plan.entries) == ["decode"]
    root(model, imported)
    executor = Executor(imported.plan, imported.weights, compile_reference(imported.plan))
    prompt = (5, 6, 7, 8)
    steps = greedy(model, executor, prompt, 6, stop_at_end=False)
    found = [each.token for each in steps]
    own = model.module.generate(
        torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=None
    )
    assert found == own[0, len(prompt) :].tolist()
    workload: Any = workload_of(model)
    workload.check([workload.as_case((5,))], 1, every_entry=True)
