"""Where operations come from."""

from __future__ import annotations

import pytest

from tapml.graph.origins import layer_of, strip_prefix


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("model.layers.0.self_attn", 0),
        ("transformer.h.11", 11),
        ("model.layers.3.mlp.experts.7", 3),
        ("model.rotary_emb", None),
        ("conv2d", None),
        ("", None),
    ],
)
def test_the_layer_is_the_first_number_of_a_path(path: str, layer: int | None) -> None:
    assert layer_of(path) == layer


@pytest.mark.parametrize(
    ("path", "prefix", "expected"),
    [
        ("model.lm_head", "model", "lm_head"),
        ("model", "model", ""),
        ("modelling.x", "model", "modelling.x"),
        ("a.b", "", "a.b"),
    ],
)
def test_a_wrapper_is_taken_off_the_path(path: str, prefix: str, expected: str) -> None:
    assert strip_prefix(path, prefix) == expected
