from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tapml.models import LoadedModel, load_model
from tests.models.folders import make_folder
from tests.models.running import EagerRunner

# The axis of an input of prefill that holds the number of new tokens.
DYNAMIC = {"token_ids": 1, "position_ids": 1, "attention_mask": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(make_folder(tmp_path_factory.mktemp("entries") / "model"), context_length=24)


def test_entries_share_parameters_and_their_names(model: LoadedModel) -> None:
    prefill, decode = model.entry_modules()
    assert (prefill.name, decode.name) == ("prefill", "decode")
    first, second = (dict(entry.module.named_parameters()) for entry in (prefill, decode))
    assert first.keys() == second.keys()
    assert all(first[name] is second[name] for name in first)


def test_state_is_named_and_placed(model: LoadedModel) -> None:
    for entry in model.entry_modules():
        assert [state.name for state in entry.state] == [
            "cache.0.key",
            "cache.0.value",
            "cache.1.key",
            "cache.1.value",
        ]
        for state in entry.state:
            assert entry.input_names[state.input_index] == state.name
            assert entry.output_names[state.output_index] == state.name
            assert tuple(entry.example_inputs[state.input_index].shape) == state.shape
            assert model.empty_state()[state.name].shape == state.shape == (1, 2, 24, 12)
        assert entry.output_names[0] == "logits"
        assert len(entry.example_inputs) == len(entry.input_names)


def test_only_new_rows_of_the_cache_change(model: LoadedModel) -> None:
    prefill, _ = model.entry_modules()
    random = np.random.default_rng(0)
    state = {
        name: random.standard_normal(value.shape).astype(value.dtype)
        for name, value in model.empty_state().items()
    }
    inputs = {**model.prepare_prefill((3, 4, 5), 6), **state}
    outputs = prefill.module(*(torch.from_numpy(inputs[name]) for name in prefill.input_names))
    for specification in prefill.state:
        before = state[specification.name]
        after = outputs[specification.output_index].numpy()
        changed = (before != after).any(axis=(0, 1, 3))
        assert np.flatnonzero(changed).tolist() == [6, 7, 8]


def test_a_prompt_in_pieces_gives_the_same_logits(model: LoadedModel) -> None:
    tokens = (5, 17, 99, 3, 42, 8, 130, 64, 21)
    whole = EagerRunner(model).run(tokens)
    runner = EagerRunner(model)
    pieces = [runner.run(tokens[:1]), runner.run(tokens[1:4]), runner.run(tokens[4:])]
    assert np.abs(np.concatenate(pieces, axis=1) - whole).max() <= 1e-5


def test_the_cache_can_be_filled_to_its_last_row(model: LoadedModel) -> None:
    tokens = tuple(range(24))
    whole = EagerRunner(model).run(tokens)
    runner = EagerRunner(model)
    runner.run(tokens[:23])
    assert np.abs(runner.run(tokens[23:])[0, -1] - whole[0, -1]).max() <= 1e-5


@pytest.mark.parametrize("kind", ["float32", "tied", "qwen3"])
def test_entries_export_with_one_dynamic_length_and_import_into_relax(
    tmp_path: Path, kind: str
) -> None:
    from tvm.relax.frontend.torch import from_exported_program
    from tvm.tirx import Var

    folder = make_folder(tmp_path / "model", kind, num_hidden_layers=1)
    model = load_model(folder, context_length=24)
    for entry in model.entry_modules():
        program = torch.export.export(
            entry.module, entry.example_inputs, dynamic_shapes=entry.dynamic_shapes, strict=False
        )
        symbols = set(program.range_constraints)
        assert len(symbols) == (1 if entry.name == "prefill" else 0)
        module: Any = from_exported_program(
            program.run_decompositions(), keep_params_as_input=True, run_ep_decomposition=False
        )
        parameters = module["main"].params[: len(entry.input_names)]
        for parameter, example, name in zip(
            parameters, entry.example_inputs, entry.input_names, strict=True
        ):
            assert str(parameter.ty.dtype) == str(example.dtype).removeprefix("torch.")
            dynamic = DYNAMIC.get(name) if entry.name == "prefill" else None
            for axis, (found, size) in enumerate(
                zip(parameter.ty.shape, example.shape, strict=True)
            ):
                if axis == dynamic:
                    assert isinstance(found, Var)
                else:
                    assert int(found) == size
