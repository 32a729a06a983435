"""Classes of transformers without a file in the families: taken as they are, or refused by why."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tapml.models import load_model
from tapml.models.families.preprocessed import features, image, sound
from tapml.models.huggingface import load_any
from tapml.models.loaded import LoadedModule
from tapml.models.positions_of_past import positions_of_past
from tapml.models.unlisted import unlisted_family
from tapml.rooting.own_forward import root_wrapper
from tapml_targets.errors import InputError
from tests.models.other_models import OTHERS, make_other
from tests.models.shrunk import make_shrunk, variants

_SIZES: dict[str, Any] = {"vocab_size": 131, "bos_token_id": 0, "eos_token_id": 1}


def write(folder: Path, name: str, **settings: Any) -> Path:
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model_class(model_class.config_class(**_SIZES, **settings)).save_pretrained(folder)
    return folder


_COHERE = {
    "hidden_size": 48,
    "intermediate_size": 60,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "GPTJForCausalLM",
            {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64, "rotary_dim": 8},
        ),
        # Layers of two kinds: a mask for each must be found.
        ("Cohere2ForCausalLM", {**_COHERE, "sliding_window": 9, "sliding_window_pattern": 2}),
        ("Starcoder2ForCausalLM", {**_COHERE, "sliding_window": 9}),
    ],
)
def test_a_decoder_that_no_family_has_computes_what_its_own_forward_computes(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    model = load_model(write(tmp_path / "model", name, **settings))
    assert model.layers == 2
    assert root_wrapper(model) < 1e-5


def test_positions_behind_a_cache_are_a_tensor_not_a_range_that_only_the_run_knows() -> None:
    from transformers.models.roformer import modeling_roformer

    class Behind(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = modeling_roformer.RoFormerSinusoidalPositionalEmbedding(16, 8)

        def forward(self, ids: torch.Tensor, past: torch.Tensor) -> Any:
            return self.table(ids.shape, past)

    inputs = torch.zeros(1, 3), torch.tensor(5, dtype=torch.int32)
    with positions_of_past(module := Behind()):
        exported = torch.export.export(module, inputs)
    assert "_local_scalar_dense" not in str(exported.graph)
    assert torch.equal(exported.module()(*inputs), module.table.weight[5:8])
    assert "forward" not in vars(module.table)


def test_a_decoder_whose_cache_no_entry_has_reads_its_whole_text(tmp_path: Path) -> None:
    (other,) = (each for each in OTHERS if each.architecture == "HrmTextForCausalLM")
    model = load_model(make_other(tmp_path / "model", other))
    assert any("every run reads the whole context" in note for note in model.notes)
    assert root_wrapper(model) < 1e-5


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        # Text beside images; a text that is read both ways; a series of numbers.
        ("CLIPModel", ["input_ids", "pixel_values"]),
        ("XLNetLMHeadModel", ["input_ids"]),
        ("PatchTSTForPrediction", ["past_values"]),
    ],
)
def test_a_class_of_no_kind_moves_as_a_module_of_the_inputs_it_runs_with(
    tmp_path: Path, name: str, inputs: list[str]
) -> None:
    model_folder = make_shrunk(tmp_path / "model", name, next(variants(name))[1])
    model = load_any(model_folder)
    assert isinstance(model, LoadedModule)
    assert [each.name for each in model.stored.inputs] == inputs
    assert root_wrapper(model) < 1e-5
    # Branches are those of what it is to run on.
    other = model.samples[1][0]
    given = model.of_given(((other, "x.npz"),))
    assert given.identity != model.identity
    (entry,) = given.entry_modules()
    assert all(map(np.array_equal, entry.example_inputs, other))
    if inputs == ["input_ids"]:
        beyond = (other[0] + 1000,)
        with pytest.raises(InputError, match=r"^x\.npz: the forward of XLNetLMHeadModel does not"):
            model.of_given(((beyond, "x.npz"),))


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        # Values before the context that lags look at; an argument of no known shape that another
        # takes the place of.
        ("InformerForPrediction", ["past_values", "past_time_features", "past_observed_mask"]),
        ("PerceiverForMaskedLM", ["input_ids"]),
    ],
)
def test_inputs_are_found_by_what_a_configuration_says(
    tmp_path: Path, name: str, inputs: list[str]
) -> None:
    other = next(each for each in OTHERS if each.architecture == name)
    model = load_any(make_other(tmp_path / "model", other))
    assert isinstance(model, LoadedModule)
    assert [each.name for each in model.stored.inputs] == inputs
    assert root_wrapper(model) < 1e-5


def test_weights_that_a_part_ties_are_not_missing(tmp_path: Path) -> None:
    """An encoder of images and a decoder of two classes, as TrOCR and Donut have."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 6}
    reads = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, intermediate_size=60)
    writes = transformers.BertConfig(
        **sizes, vocab_size=131, intermediate_size=60, is_decoder=True, add_cross_attention=True
    )
    both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(reads, writes)
    both.decoder_start_token_id, both.pad_token_id = 0, 2
    transformers.VisionEncoderDecoderModel(both).save_pretrained(tmp_path / "model")
    model = load_any(tmp_path / "model")
    assert isinstance(model, LoadedModule)
    assert [each.name for each in model.stored.inputs] == ["pixel_values", "decoder_input_ids"]
    assert root_wrapper(model) < 1e-5


def test_weights_of_another_size_are_named_as_in_a_listed_family(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "Starcoder2ForCausalLM", **_COHERE)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 131', '"vocab_size": 132'))
    with pytest.raises(InputError, match=r"mismatched weights.*\(132, 48\), found \(131, 48\)"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # Positions behind the padding token's; a window that reaches both ways; a causal reader;
        # a mask of two dimensions; two numbers for each token; keys and values of a source, and one
        # read through a window; batch norms; windows of an image.
        ("RobertaModel", "encoder"),
        ("ModernBertModel", "encoder"),
        ("CLIPTextModel", "encoder"),
        ("DebertaV2Model", "encoder"),
        ("RobertaForQuestionAnswering", "encoder"),
        ("MBartForConditionalGeneration", "encoder_decoder"),
        ("T5GemmaForConditionalGeneration", "encoder_decoder"),
        ("ResNetForImageClassification", "module"),
        ("SwinForImageClassification", "module"),
        ("Wav2Vec2ForCTC", "module"),
        ("ASTForAudioClassification", "module"),
    ],
)
def test_other_kinds_of_models_compute_what_their_own_forward_computes(
    tmp_path: Path, name: str, kind: str
) -> None:
    other = next(each for each in OTHERS if each.architecture == name)
    model = load_any(make_other(tmp_path / "model", other))
    assert model.stored.workload == kind
    assert [step.entry for step in model.own_steps()]
    assert root_wrapper(model) < 1e-5


def test_sentences_are_no_longer_than_positions_behind_the_paddings(tmp_path: Path) -> None:
    other = next(each for each in OTHERS if each.architecture == "RobertaModel")
    folder = make_other(tmp_path / "model", other)
    with pytest.raises(InputError, match=r"context of 40 tokens .* expected 8 to 37"):
        load_any(folder, context_length=40)


def test_an_image_of_no_known_size_is_asked_for(tmp_path: Path) -> None:
    other = next(each for each in OTHERS if each.architecture == "ResNetForImageClassification")
    folder = make_other(tmp_path / "model", other)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"size of its images: expected image_size"):
        load_any(folder)


@pytest.mark.parametrize(
    ("shape", "settings", "said"),
    [
        *(
            (sound, {"max_length": value, "num_mel_bins": 16}, "max_length = .* from 1 to 262144")
            for value in ("fast", [1], math.inf, -5, True, 10**12)
        ),
        (sound, {"max_length": 1 << 18, "num_mel_bins": 1 << 18}, "at most 268435456 numbers"),
        (features, {"num_mel_bins": "x"}, "num_mel_bins = 'x'"),
        (features, {"num_mel_bins": 8, "max_source_positions": 10**12}, "max_source_positions = "),
        (features, {}, "nothing of the bins"),
        (image, {"image_size": {"edge": 8}}, "image_size = "),
        (image, {"image_size": [8, 8, 8]}, "image_size = "),
        (image, {"image_size": 8, "num_channels": None}, "num_channels = 'None'"),
    ],
)
def test_a_size_that_no_image_or_sound_has_is_refused_by_its_name(
    tmp_path: Path, shape: Callable[[Any], tuple[int, ...]], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        shape(SimpleNamespace(name_or_path=str(tmp_path), **settings))


def test_a_preprocessors_numbers_are_checked_too(tmp_path: Path) -> None:
    prepared = tmp_path / "preprocessor_config.json"
    config = SimpleNamespace(name_or_path=str(tmp_path))
    prepared.write_text('{"sampling_rate": 1e400, "size": {"shortest_edge": "8"}}', "utf-8")
    with pytest.raises(InputError, match="sampling_rate = 'inf'"):
        sound(config)
    with pytest.raises(InputError, match="image_size = '8'"):
        image(config)
    prepared.write_text('{"sampling_rate": 8000, "size": {"height": 8, "width": 9}}', "utf-8")
    assert sound(config) == (8000,)
    assert image(config) == (3, 8, 9)


def test_classes_of_transformers_alone_are_tried() -> None:
    several = unlisted_family("BertForMultipleChoice")
    assert several is not None
    assert several.several
    assert unlisted_family("SomebodysForCausalLM") is None


def sample(folder: Path, name: str) -> Path:
    return make_other(folder, next(each for each in OTHERS if each.architecture == name))


@pytest.mark.parametrize(
    "name",
    [
        "OpenAIGPTLMHeadModel",
        "LlavaForConditionalGeneration",
        # With buffers that are infinite.
        "Gemma4ForConditionalGeneration",
    ],
)
def test_a_decoder_without_a_cache_and_those_that_read_more_than_text_read_text(
    tmp_path: Path, name: str
) -> None:
    model = load_model(sample(tmp_path / "model", name))
    assert model.vocabulary == 131
    assert root_wrapper(model) < 1e-5


def test_scores_of_what_is_left_out_are_infinite_and_equal(tmp_path: Path) -> None:
    name = "GroundingDinoForObjectDetection"
    small = dict(variants(name))["all sizes, even"]
    model = load_any(make_shrunk(tmp_path / "model", name, small))
    assert any(np.isinf(step.own).any() for step in model.own_steps())
    assert root_wrapper(model) < 1e-5


def test_a_detector_gives_every_result_by_name(tmp_path: Path) -> None:
    model = load_any(sample(tmp_path / "model", "YolosForObjectDetection"))
    assert isinstance(model, LoadedModule)
    assert {"logits", "pred_boxes"} <= {each.name for each in model.signature.outputs}
    assert root_wrapper(model) < 1e-5
