"""Random tensors keep what an operator needs of the real ones, and none of their numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tapml.bundle.random_inputs import STRATEGIES, Strategy, random_like
from tapml_targets.float_formats import as_float64

NORMAL = Strategy("normal", False, 0)
PLACES = Strategy("normal", True, 0)
any_strategy = st.sampled_from(STRATEGIES)


def draw(
    raw: NDArray[Any], dtype: str, strategy: Strategy = NORMAL, lifetime: str = "activation"
) -> NDArray[Any]:
    return random_like(raw, dtype, lifetime, strategy, np.random.default_rng(1))


@settings(deadline=None, max_examples=60)
@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_side=6), elements=st.floats(width=32)),
    any_strategy,
)
def test_shape_sign_and_magnitude_stay(raw: NDArray[np.float32], strategy: Strategy) -> None:
    drawn = draw(raw, "float32", strategy)
    assert (drawn.shape, drawn.dtype) == (raw.shape, raw.dtype)
    ordinary = np.abs(raw[np.isfinite(raw) & (np.abs(raw) < 1e30)].astype(np.float64))
    bound = 2 * ordinary.max(initial=0.0)
    made = drawn[np.isfinite(drawn) & (np.abs(drawn) < 1e30)].astype(np.float64)
    assert (np.abs(made) <= bound).all()
    if not np.isnan(raw).any() and (raw >= 0).all():
        assert (drawn >= 0).all()
    for test in (np.isnan, np.isinf):
        assert not test(drawn).any() or test(raw).any()


@settings(deadline=None, max_examples=60)
@given(
    hnp.arrays(
        np.int64, hnp.array_shapes(max_dims=2, max_side=8), elements=st.integers(0, 1 << 40)
    ),
    any_strategy,
)
def test_indices_stay_valid(raw: NDArray[np.int64], strategy: Strategy) -> None:
    drawn = draw(raw, "int64", strategy)
    assert (drawn.shape, drawn.dtype) == (raw.shape, raw.dtype)
    assert drawn.min() >= 0
    assert drawn.max() <= raw.max()


def test_a_single_token_does_not_show() -> None:
    drawn = {
        int(random_like(np.array([[31_000]]), "int64", "input", NORMAL, generator)[0, 0])
        for generator in map(np.random.default_rng, range(5))
    }
    assert len(drawn) == 5


def test_positions_stay_in_order_and_rows_apart() -> None:
    positions = draw(np.arange(40, 57, dtype=np.int64), "int64")
    assert (np.diff(positions) == 1).all()
    assert positions.max() <= 56
    rows = draw(np.array([7, 2, 19, 4], np.int32), "int32")
    assert len(set(rows.tolist())) == 4
    increasing = draw(np.array([1, 5, 9, 30], np.int32), "int32")
    assert (np.diff(increasing) > 0).all()


@pytest.mark.parametrize("value", [-np.inf, np.finfo(np.float32).min, np.nan, 0.0])
def test_masks_keep_their_places_where_asked_and_weights_never_do(value: float) -> None:
    raw = np.random.default_rng(0).standard_normal((20, 20)).astype(np.float32)
    raw[np.triu_indices(20, 1)] = value

    def places(array: NDArray[Any]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.isnan(array)
        return found if np.isnan(value) else np.equal(array, np.float32(value)).astype(bool)

    assert np.array_equal(places(draw(raw, "float32", PLACES)), places(raw))
    for other in (draw(raw, "float32"), draw(raw, "float32", PLACES, "weight")):
        assert not np.array_equal(places(other), places(raw))
        assert abs(places(other).mean() - places(raw).mean()) < 0.15


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float64"])
def test_every_floating_point_dtype_is_drawn(dtype: str) -> None:
    numbers = (
        np.random.default_rng(0)
        .standard_normal((8, 8))
        .astype(getattr(ml_dtypes, dtype, None) or np.dtype(dtype))
    )
    raw = (
        numbers.view({1: np.uint8, 2: np.uint16}[numbers.itemsize])
        if hasattr(ml_dtypes, dtype)
        else numbers
    )
    drawn = as_float64(draw(raw, dtype), dtype)
    assert 0.2 < drawn.std() < 5
    assert not np.array_equal(drawn, as_float64(raw, dtype))


def test_packed_integers_and_booleans_are_drawn() -> None:
    packed = np.zeros((4, 16), np.uint8)
    assert draw(packed, "int4").any()
    flags = np.arange(400).reshape(20, 20) % 4 == 0
    assert abs(draw(flags, "bool").mean() - 0.25) < 0.1
