"""What people give a model, as the inputs of its plan's entries."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tapml.backends.plan_inputs import plan_inputs
from tapml.backends.runner import FEATURES, MASK, TOKENS, WRITTEN, Array
from tapml.models.stored import (
    ModuleTensor,
    StoredDecoder,
    StoredEncoder,
    StoredEncoderDecoder,
    StoredModel,
    StoredModule,
)

_TEXT: Mapping[str, Array] = {
    TOKENS: np.array([[5, 6, 7, 0]]),
    MASK: np.array([[1, 1, 1, 0]]),
    WRITTEN: np.array([[3, 4]]),
}
_SPEECH = {FEATURES: np.ones((1, 4, 12), np.float32), WRITTEN: np.array([[3, 4]])}


def _encoder_decoder(features: tuple[int, int] | None) -> StoredEncoderDecoder:
    return StoredEncoderDecoder("t5", "float32", 8, 11, (3,), frozenset({1}), 0, features, "hash")


MODELS: list[tuple[StoredModel, Mapping[str, Array], list[str]]] = [
    (
        StoredModule("net", "float32", (ModuleTensor("x", "float32", ("n", 3)),),
                     (ModuleTensor("y", "float32"),), "values", (), "hash"),
        {"x": np.ones((2, 3), np.float32)}, ["forward"],
    ),
    (StoredDecoder("llama", "float32", 8, 11, frozenset({1}), "hash"),
     {TOKENS: _TEXT[TOKENS]}, ["prefill"]),
    (StoredEncoder("bert", "float32", 1, 8, 11, 0, "vectors", "hash"), _TEXT, ["encode"]),
    (_encoder_decoder(None), _TEXT, ["encode", "decode", "decode"]),
    (_encoder_decoder((4, 12)), _SPEECH, ["encode", "decode", "decode"]),
]  # fmt: skip


@pytest.mark.parametrize(("model", "given", "entries"), MODELS)
def test_every_entrys_input_is_made_of_one_input_of_the_model(
    model: StoredModel, given: Mapping[str, Array], entries: list[str]
) -> None:
    found = plan_inputs(model)
    arrays = {each.name: given[each.name] for each in found.inputs()}
    runs = found.runs(arrays)
    assert [name for name, _ in runs] == entries
    first = dict(reversed(runs))
    for entry, prepared in first.items():
        for name, array in prepared.items():
            source = found.source_of(entry, name)
            np.testing.assert_array_equal(found.alone(entry, name, arrays[source]), array)


def test_a_sentences_vectors_end_where_the_data_does() -> None:
    found = plan_inputs(StoredEncoder("bert", "float32", 1, 8, 11, 0, "vectors", "hash"))
    assert found.cut(np.zeros((1, 8, 5)), _TEXT).shape == (1, 4, 5)
