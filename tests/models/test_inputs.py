from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.models import entry_for, entry_inputs
from tapml.models.inputs import MODEL_INPUTS
from tapml_targets.errors import InputError


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, int, int]:
    """Context length, start and number of tokens that fit."""
    context = draw(st.integers(1, 40))
    start = draw(st.integers(0, context - 1))
    return context, start, draw(st.integers(1, context - start))


@given(runs(), st.sampled_from(["float32", "float16"]))
def test_inputs_say_what_is_stored_and_what_is_seen(run: tuple[int, int, int], dtype: str) -> None:
    context, start, length = run
    tokens = [7 * index for index in range(length)]
    inputs = entry_inputs(tokens, start, context_length=context, dtype=dtype)
    assert tuple(inputs) == MODEL_INPUTS
    assert inputs["token_ids"].tolist() == [tokens]
    assert inputs["position_ids"].tolist() == [list(range(start, start + length))]
    for row, source in enumerate(inputs["cache_rows"].tolist()):
        assert source == (row - start if start <= row < start + length else -1)
    mask = inputs["attention_mask"]
    assert mask.shape == (1, 1, length, context)
    assert mask.dtype == dtype
    assert np.isfinite(mask).all()
    for index in range(length):
        assert (mask[0, 0, index] == 0).tolist() == [row <= start + index for row in range(context)]
    assert all(inputs[name].dtype == np.int32 for name in MODEL_INPUTS[:3])


def test_tokens_beyond_the_context_are_refused_with_both_lengths() -> None:
    with pytest.raises(InputError, match="need a context of 11, but this one has 10"):
        entry_inputs([1, 2, 3], 8, context_length=10, dtype="float32")


def test_no_token_is_refused() -> None:
    with pytest.raises(InputError, match="at least one token"):
        entry_inputs([], 0, context_length=10, dtype="float32")


def test_a_single_token_goes_through_decode() -> None:
    assert [entry_for(length) for length in (1, 2, 3, 200)] == ["decode"] + 3 * ["prefill"]
