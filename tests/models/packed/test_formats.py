"""Quantized layers become packed weights, equal to the format's own unpacking bit by bit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from tapml.models.packed.formats import format_of
from tapml.models.packed.formats.format import Layer
from tapml.models.packed.path_pattern import check_pattern, matches
from tapml.models.packed.weight import PackedWeight
from tapml_targets.errors import InputError
from tests.models.packed.checkpoints import (
    COLUMNS,
    ROWS,
    WRITTEN,
    Written,
    compressed_tensors,
    gptq,
)


def read(written: Written, shape: tuple[int, int] = (ROWS, COLUMNS)) -> PackedWeight:
    """The layer as tapml reads it."""
    form = format_of({"quantization_config": written.config}, "config.json")
    assert form is not None
    tensors = {name: torch.from_numpy(each) for name, each in written.tensors.items()}
    return form.read(Layer("layers.0.up", tensors, shape, written.config))


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_layer_unpacks_to_the_bits_of_the_formats_own_unpacking(kind: str) -> None:
    written = WRITTEN[kind]()
    weight = read(written)
    assert weight.bits == (8 if "8 bits" in kind else 4)
    assert torch.equal(weight.unpacked(), torch.from_numpy(written.matrix))


def test_a_layer_of_another_shape_is_refused_with_both() -> None:
    with pytest.raises(InputError, match=r"layers\.0\.up\.qweight has shape \(8, 16\).*\(8, 24\)"):
        read(gptq(), (24, COLUMNS))
    with pytest.raises(InputError, match=r"weight_shape is \(16, 65\): expected \(16, 64\)"):
        wrong = compressed_tensors()
        wrong.tensors["weight_shape"][1] = 65
        read(wrong)


def test_a_g_idx_that_no_quantizer_writes_is_refused() -> None:
    wrong = gptq()
    wrong.tensors["g_idx"][:] = 0
    with pytest.raises(InputError, match="g_idx does not give every group 16 columns"):
        read(wrong)


def test_groups_that_the_configuration_does_not_have_are_refused() -> None:
    wrong = compressed_tensors()
    wrong.config["config_groups"]["group_0"]["weights"]["group_size"] = 24
    with pytest.raises(InputError, match="has 4 groups for 64 columns: expected groups of 24"):
        read(wrong)
    with pytest.raises(InputError, match=r"layers\.0\.up has bits = '3'"):
        read(gptq(dynamic={"layers": {"bits": 3}}))


def test_the_words_of_a_layer_choose_among_the_bits_of_a_folder() -> None:
    written = compressed_tensors(bits=8)
    groups = written.config["config_groups"]
    groups["group_1"] = {"weights": {**groups["group_0"]["weights"], "num_bits": 4}}
    assert torch.equal(read(written).unpacked(), torch.from_numpy(written.matrix))


def test_the_targets_of_a_group_choose_its_size() -> None:
    written = compressed_tensors(group=24)
    weights = written.config["config_groups"]["group_0"]["weights"]

    def groups(*targets: list[str]) -> None:
        written.config["config_groups"] = {
            str(size): {"targets": each, "weights": {**weights, "group_size": size}}
            for size, each in zip((30, 24), targets, strict=True)
        }

    # Both sizes give 64 columns three groups.
    for targets in (
        (["re:.*down"], [r"re:.*\.\d+\.(gate|up)$"]),
        (["Linear"], ["re:layers"]),
        (["re:.*up"], ["layers.0.up"]),
        (["Embedding"], ["Linear"]),
    ):
        groups(*targets)
        assert torch.equal(read(written).unpacked(), torch.from_numpy(written.matrix))
    groups(["re:.*up"], ["re:layers"])
    with pytest.raises(InputError, match=r"layers\.0\.up may have groups of 24 or 30 columns"):
        read(written)
    groups(["re:(.+)+!"], ["Linear"])
    with pytest.raises(InputError, match=r"the pattern '\(\.\+\)\+!'"):
        read(written)


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        ({"(.+)+!": {}}, r"the pattern '\(\.\+\)\+!'"),
        ({"[": {}}, r"the pattern '\['"),
        ({"+:[z-a]": {}}, "the pattern"),
        ({"(" * 21 + ")" * 21: {}}, "the pattern"),
        ({"a" * 1001: {}}, "at most 1000 characters"),
        (["x"], "expected an object of patterns"),
        ({"layers": 3}, "'3' for 'layers' in dynamic"),
    ],
)
def test_a_dynamic_that_is_no_object_of_patterns_is_refused(dynamic: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(gptq(dynamic=dynamic))


def test_patterns_of_paths_are_those_of_re_and_cannot_hang() -> None:
    path = "model.layers.18.mlp.gate_proj"
    for pattern in (
        *(r".*\.18\..*gate.*", r".*\.1[0-7]\.", r"model", "layers", r"^model\.layers\.\d+", ""),
        *(
            r".*\.(?:17|18)\.mlp\.(up|gate)_proj$",
            r".*[^a-z.]\.m?",
            r"(|.*x)model$",
            r"(|x)model",
            r".*?8",
        ),
    ):
        check_pattern(pattern, "config.json")
        assert matches(pattern, path) is bool(re.match(pattern, path)), pattern
    assert not matches(".?" * 100 + "(a|a|.*)" * 20 + "=", "a" * 200)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "bitsandbytes"}, "quantized with bitsandbytes.*dequantize"),
        ({"quant_method": "fp8"}, "quantized with fp8.*--quantize int8"),
        ({"quant_method": "gptq", "bits": 3}, "bits = '3'.*expected 4"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version = 'gemv'.*expected"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "float-quantized"),
        ("gptq", "no object"),
    ],
)
def test_an_unsupported_quantization_is_named_with_what_to_do(config: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        format_of({"quantization_config": config}, "config.json")


def test_float_weights_have_no_format() -> None:
    assert format_of({}, "config.json") is None


def test_the_oracle_of_these_tests_knows_swapped_nibbles() -> None:
    written = gptq()
    right = read(written).unpacked()
    written.tensors["qweight"] = np.bitwise_or(
        (written.tensors["qweight"].view(np.uint32) & 0x0F0F0F0F) << 4,
        (written.tensors["qweight"].view(np.uint32) >> 4) & 0x0F0F0F0F,
    ).view(np.int32)
    assert not torch.equal(read(written).unpacked(), right)
