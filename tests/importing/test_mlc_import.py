"""A definition of mlc-llm becomes a plan that computes what the class of the folder computes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tapml.importing.imported import ImportedModel
from tapml.importing.importer import import_model, weights_of
from tapml.importing.mlc_cache import cache_request
from tapml.models.huggingface import load_any
from tapml.models.mlc_model import MlcModel
from tapml.plan import format as plan_format
from tapml.rooting.rooting import root
from tapml_targets.errors import InputError, MismatchError, UnsupportedOperatorError
from tests.models.families import make_family
from tests.models.mlc_stand_in import STAND_IN

REAL = os.environ.get("MLC_LLM_SOURCE", "")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MlcModel:
    """A Llama of one layer, three query heads for one of keys."""
    folder = make_family(tmp_path_factory.mktemp("llama") / "m", "llama", num_hidden_layers=1)
    found = load_any(folder, mlc_llm=str(STAND_IN))
    assert isinstance(found, MlcModel)
    return found


@pytest.fixture(scope="module")
def imported(model: MlcModel) -> ImportedModel:
    """Its plan."""
    return import_model(model)


def test_outputs_and_state_are_those_of_transformers(
    model: MlcModel, imported: ImportedModel
) -> None:
    report = root(model, imported)
    outputs = [each for each in report.compared if each.kind == "output"]
    # Logits, keys and values, of prefill and decode.
    assert len(outputs) == 6
    assert report.worst is not None
    assert report.worst.ratio < 0.1


def test_weights_are_those_of_the_definition(model: MlcModel, imported: ImportedModel) -> None:
    width = 72
    assert imported.plan.weights["layers.0.qkv.weight"].shape == (width + 2 * 24, width)
    assert imported.plan.weights["lm_head.weight"].shape == (131, width)
    constants = {name: imported.weights[name] for name in imported.plan.weights if "." not in name}
    constants |= {k: v for k, v in imported.weights.items() if k.startswith("constants.")}
    again = weights_of(model, imported.plan, constants)
    assert all(np.array_equal(again[name], each) for name, each in imported.weights.items())


def test_the_plan_can_be_kept(imported: ImportedModel) -> None:
    assert plan_format.unpack(plan_format.pack(imported.plan)) == imported.plan


def test_a_call_site_knows_its_module_and_line(imported: ImportedModel) -> None:
    prefill = imported.plan.entries["prefill"]
    paths = {origin.module_path for call in prefill.calls for origin in call.origins}
    assert {"embed_tokens", "layers.0.qkv", "layers.0", "lm_head"} <= paths
    assert {call.layer for call in prefill.calls} == {None, 0}
    sources = {o.source.partition(":")[0] for call in prefill.calls for o in call.origins}
    assert sources == {"model/llama.py"}


def test_a_loader_that_mixes_rows_up_is_seen(model: MlcModel) -> None:
    known = model.mlc.definition("llama")

    def swapped(*arguments: Any) -> Any:
        found = known.source["huggingface-safetensor"](*arguments)
        name = "layers.0.gate_up.weight"
        found.param_map[name] = found.param_map[name][::-1]
        return found

    models = {"llama": replace(known, source={"huggingface-safetensor": swapped})}
    wrong = replace(model, mlc=replace(model.mlc, models=models))
    with pytest.raises(MismatchError, match="prefill"):
        root(wrong, import_model(wrong))


def test_weights_of_another_shape_are_named_with_both(model: MlcModel) -> None:
    known = model.mlc.definition("llama")

    def shorter(*arguments: Any) -> Any:
        found = known.source["huggingface-safetensor"](*arguments)
        found.param_map["layers.0.qkv.weight"].pop()
        return found

    models = {"llama": replace(known, source={"huggingface-safetensor": shorter})}
    with pytest.raises(InputError, match=r"qkv.weight has the shape \(120, 72\).*\(96, 72\)"):
        replace(model, mlc=replace(model.mlc, models=models)).tensors()


class _Cache:
    create_generic = staticmethod(lambda **asked: asked)


def asking(**changes: Any) -> Any:
    """A definition that asks for a cache of two layers."""
    asked = {
        "attn_kind": "mha",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "qk_head_dim": 8,
        "v_head_dim": 8,
        "rope_mode": 1,
        "rope_scale": 1,
        "rope_theta": 10000,
        "dtype": "float32",
        **changes,
    }
    return SimpleNamespace(create_paged_kv_cache=lambda *_: _Cache.create_generic(**asked))


def test_a_window_is_of_all_layers_or_of_those_that_slide() -> None:
    windowed = SimpleNamespace(sliding_window_size=6)
    assert cache_request(asking(), windowed, _Cache, 16).windows == (6, 6)
    kinds = asking(attn_kind=["mha_sliding", "mha"])
    assert cache_request(kinds, windowed, _Cache, 16).windows == (6, 0)
    assert cache_request(asking(), SimpleNamespace(), _Cache, 16).windows == (0, 0)
    assert cache_request(asking(), SimpleNamespace(sliding_window_size=-1), _Cache, 16).windows == (
        0,
        0,
    )


def test_llama3_stretches_long_waves_as_transformers_does() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 131072}
    config = LlamaConfig(rope_parameters={"rope_theta": 500000.0, **scaling}, **sizes)
    expected, factor = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    asked = asking(rope_scaling=scaling, rope_theta=500000, qk_head_dim=64, v_head_dim=64)
    found = cache_request(asked, None, _Cache, 16)
    np.testing.assert_allclose(found.frequencies, expected.numpy(), rtol=1e-6)
    assert found.magnitude == factor == 1.0


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"attn_kind": "mla"}, "attention of the kind mla"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "scaled by 'yarn'"),
    ],
)
def test_what_is_not_written_out_is_named(asked: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=expected):
        cache_request(asking(**asked), None, _Cache, 16)


@pytest.mark.skipif(not REAL, reason="MLC_LLM_SOURCE names no source of mlc-llm")
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox", "phi"])
def test_definitions_of_the_real_source_are_rooted(tmp_path: Path, family: str) -> None:
    found = load_any(make_family(tmp_path / "m", family), mlc_llm=REAL)
    assert root(found, import_model(found)).worst is not None
