from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tapml.models import load_model
from tapml.models.huggingface import _of_key, load_any
from tapml.rooting.own_forward import root_wrapper
from tapml_targets.errors import InputError
from tests.models.families import make_family
from tests.models.folders import DAMAGES, KINDS, make_damaged_folder, make_folder
from tests.models.running import EagerRunner

PROMPT = (5, 17, 99, 3, 42, 8, 130, 64, 21)
NEXT = (11, 7, 120, 55, 2, 90)


def transformers_logits(folder: Path, dtype: torch.dtype, token_ids: tuple[int, ...]) -> Any:
    """Logits of plain transformers with its own cache: a prefill, then a token at a time."""
    module = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        output = module(torch.tensor([token_ids]), use_cache=True)
        logits = [output.logits]
        for token in NEXT:
            output = module(
                torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True
            )
            logits.append(output.logits)
    return torch.cat(logits, dim=1).float().numpy()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_entries_compute_what_transformers_computes(tmp_path: Path, kind: str) -> None:
    folder = make_folder(tmp_path / "model", kind)
    model = load_model(folder)
    runner = EagerRunner(model)
    found = [runner.run(PROMPT), *(runner.run((token,)) for token in NEXT)]
    expected = transformers_logits(folder, getattr(torch, model.dtype), PROMPT)
    tolerance = 1e-5 if model.dtype == "float32" else 4e-3
    assert np.abs(expected).max() > 0.5
    difference = np.abs(np.concatenate(found, axis=1).astype(np.float32) - expected).max()
    assert difference <= tolerance * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float16")]
)
def test_the_automatic_dtype_holds_the_weights_exactly(
    tmp_path: Path, kind: str, dtype: str
) -> None:
    folder = make_folder(tmp_path / "model", kind)
    model = load_model(folder)
    assert model.dtype == dtype
    stored = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    for name, value in model.module.state_dict().items():
        assert value.dtype == getattr(torch, dtype)
        assert torch.equal(value.double(), stored[name].double())


def test_a_float16_model_can_be_taken_as_float32(tmp_path: Path) -> None:
    model = load_model(make_folder(tmp_path / "model", "float16"), dtype="float32")
    assert model.dtype == "float32"
    assert model.empty_state()["cache.0.key"].dtype == np.float32
    assert model.prepare_decode(3, 0)["attention_mask"].dtype == np.float32


def test_weights_too_large_for_float16_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_model(folder).dtype == "float32"
    with pytest.raises(InputError, match="not finite as float16"):
        load_model(folder, dtype="float16")


def test_an_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="auto, float32 or float16"):
        load_model("pydoc-llama", dtype="int4")  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_a_damaged_folder_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    folder = make_damaged_folder(tmp_path / "model", damage)
    with pytest.raises(InputError) as error:
        load_model(folder)
    message = str(error.value)
    assert "\n" not in message
    for word in DAMAGES[damage][1]:
        assert word in message


def test_no_remote_code_runs(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "modeling_evil.py").write_text("raise SystemExit('it ran')\n")
    config = (folder / "config.json").read_text()
    auto = '"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"},'
    (folder / "config.json").write_text(config.replace("{", "{" + auto, 1))
    assert load_model(folder).layers == 2


def test_loading_opens_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    folder = make_folder(tmp_path / "model", tokenizer=True)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_model(folder).tokenizer is not None


def test_the_context_is_bounded_by_the_model(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    assert load_model(folder).context_length == 64
    assert load_model(folder, context_length=32).context_length == 32
    for wanted in (65, 7, 0, -1):
        with pytest.raises(InputError, match="expected 8 to 64"):
            load_model(folder, context_length=wanted)


def test_an_attention_window_does_not_shorten_the_context(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "mistral_window")
    assert load_model(folder).context_length == 64


def test_a_long_model_starts_with_a_moderate_context(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", max_position_embeddings=4096)
    assert load_model(folder).context_length == 256
    assert load_model(folder, context_length=1000).context_length == 1000


def test_layers_of_two_kinds_have_positions_of_two_kinds(tmp_path: Path) -> None:
    long = {
        **{"rope_type": "longrope", "original_max_position_embeddings": 32, "factor": 2.0},
        **{"short_factor": [1.5] * 10, "long_factor": [3.0] * 10},
    }
    scaled = {"full_attention": long, "sliding_attention": {"rope_type": "dynamic", "factor": 2.0}}
    folder = make_family(tmp_path / "model", "gemma3", rope_parameters=scaled)
    model = load_model(folder)
    assert model.context_length == 32
    assert root_wrapper(model) < 1e-5
    # No branch on the length is left for a graph.
    tokens = torch.arange(3, 20)[None]
    whole = {"use_cache": False}
    exported = torch.export.export(model.module, (tokens,), whole, strict=False)
    assert exported.module()(tokens, **whole).logits.shape == (1, 17, 131)
    scaled["full_attention"] = {"rope_type": "unheard-of", "factor": 2.0}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": scaled}))
    with pytest.raises(InputError, match="RoPE scaling 'unheard-of': expected one of default"):
        load_model(folder)


def test_the_weights_hash_follows_the_weights_alone(tmp_path: Path) -> None:
    first = make_folder(tmp_path / "first")
    copy = tmp_path / "copy"
    shutil.copytree(first, copy)
    other = make_folder(tmp_path / "other", seed=1)
    hashes = [load_model(folder).weights_hash for folder in (first, copy, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert load_model(first, dtype="float16").weights_hash != hashes[0]


def test_positions_that_an_older_file_stores_are_computed_as_the_class_does(tmp_path: Path) -> None:
    """As in the files of sentence-transformers: integers in a model of floats."""
    file = make_family(tmp_path / "bert", "bert") / "model.safetensors"
    tensors = load_file(file)
    assert load_any(file.parent).stored.dtype == "float32"
    places = torch.arange(64)[None]
    save_file({**tensors, "embeddings.position_ids": places}, file, {"format": "pt"})
    assert root_wrapper(load_any(file.parent)) < 1e-5
    save_file({**tensors, "embeddings.places": places}, file, {"format": "pt"})
    with pytest.raises(InputError, match=r"embeddings\.places"):
        load_any(file.parent)


def test_a_name_that_is_looked_for_in_vain_is_said_or_missing() -> None:
    config = {"hidden_act": "squelu", "rope_scaling": {"rope_type": "linear"}}
    said, missing = (_of_key(KeyError(name), config) for name in ("squelu", "factor"))
    assert said == "config.json says 'squelu', which transformers does not know"
    assert missing == "config.json has no 'factor'"
