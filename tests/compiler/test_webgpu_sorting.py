"""sort, argsort and topk for WebGPU: kernels written by hand, against numpy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError
from tapml_targets.library import Library, Loop
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tests.compiler.operators import run
from tests.compiler.webgpu_operators import compiled, scan

Array = np.ndarray[Any, Any]
# Values that tie, both zeros, infinities, subnormals and NaN, beside a few ordinary ones.
FLOATS = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-42, -1e-42, 1.5, -1.5, 2.0, 3e38]
EDGES: dict[str, Array] = {
    "float32": np.array(FLOATS, np.float32),
    "float16": np.array([*FLOATS[:6], 6e-8, -6e-8, 1.5, -1.5, 2.0, 65504], np.float16),
    "int32": np.array([0, -1, 1, 7, -(1 << 31), (1 << 31) - 1], np.int32),
}


def stable_order(rows: Array, axis: int, *, descending: bool) -> Array:
    """Places in sorted order: equal elements as they came, NaN larger than any number."""
    # numpy puts NaN last; a descending order is the ascending one of ranks turned round.
    _, ranks = np.unique(rows, return_inverse=True, equal_nan=True)
    ranks = ranks.reshape(rows.shape)
    return np.argsort(-ranks if descending else ranks, axis=axis, kind="stable")


@cache
def sorted_by_hand(dtype: str, axis: int, *, descending: bool, index: str = "int32") -> Library:
    return compiled(
        scan(
            "argsort",
            ("a", "b", "c"),
            lambda x: relax.op.argsort(x, axis=axis, descending=descending, dtype=index),
            dtype=dtype,
        )
    )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(
    data=st.data(),
    shape=st.tuples(*[st.sampled_from([1, 2, 3, 5, 255, 256, 257, 700])] * 3).filter(
        lambda shape: np.prod(shape) < 5000
    ),
    axis=st.integers(0, 2),
    descending=st.booleans(),
    dtype=st.sampled_from(list(EDGES)),
)
def test_an_argsort_is_stable_and_total(
    adapter: Driver,
    data: st.DataObject,
    shape: tuple[int, int, int],
    axis: int,
    descending: bool,
    dtype: str,
) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    edges = EDGES[dtype]
    rows = edges[generator.integers(0, len(edges), shape)]
    library = sorted_by_hand(dtype, axis, descending=descending)
    _, order = run(adapter, library, "argsort", [rows, np.full(shape, -1, np.int32)])
    np.testing.assert_array_equal(order, stable_order(rows, axis, descending=descending))


@pytest.mark.parametrize("length", [1, 256, 257, 1000, 4097])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_sort_of_any_length_is_numpy_s(adapter: Driver, length: int, dtype: str) -> None:
    of = scan("sort", (2, "n"), lambda x: relax.op.sort(x, axis=-1), dtype=dtype)
    rows = np.random.default_rng(length).standard_normal((2, length)).astype(dtype)
    _, found = run(adapter, compiled(of), "sort", [rows, np.zeros_like(rows)])
    np.testing.assert_array_equal(found, np.sort(rows, -1))


@pytest.mark.parametrize("kind", ["both", "values", "indices"])
def test_topk_gives_the_largest_and_where_they_are(adapter: Driver, kind: str) -> None:
    of = scan(
        "topk",
        (3, "n"),
        lambda x: relax.op.topk(x, 5, axis=-1, ret_type=kind, dtype="int64"),
        outputs=2 if kind == "both" else 1,
    )
    rows = np.random.default_rng(0).integers(0, 99, (3, 700)).astype(np.float32)
    outputs: dict[str, Array] = {
        "values": np.zeros((3, 5), np.float32),
        "indices": np.zeros((3, 5), np.int64),
    }
    wanted = list(outputs.values()) if kind == "both" else [outputs[kind]]
    _, *found = run(adapter, compiled(of), "topk", [rows, *wanted])
    expected = np.argsort(-rows, axis=-1, kind="stable")[:, :5]
    if kind != "values":
        np.testing.assert_array_equal(found[-1], expected)
    if kind != "indices":
        np.testing.assert_array_equal(found[0], np.take_along_axis(rows, expected, -1))


def test_rows_that_fit_one_workgroup_need_no_merge() -> None:
    short = compiled(scan("sort", (4, 200), lambda x: relax.op.sort(x, axis=-1)))
    assert not any(isinstance(s, Loop) for s in short.operators["sort"].statements)
    assert set(short.kernels) == {"sort_sort_runs_kernel", "sort_write_values_kernel"}
    assert len(short.operators["sort"].workspaces) == 1


def test_a_sort_keeps_to_the_threads_a_device_allows(adapter: Driver) -> None:
    of = scan("sort", (2, "n"), lambda x: relax.op.sort(x, axis=-1))
    library = compiled(of, Target("webgpu", limits=Limits(max_threads_per_block=32)))
    assert {kernel.threads_per_block for kernel in library.kernels.values()} == {32}
    rows = np.random.default_rng(1).standard_normal((2, 500), np.float32)
    _, found = run(adapter, library, "sort", [rows, np.zeros_like(rows)])
    np.testing.assert_array_equal(found, np.sort(rows, -1))


def test_dtypes_that_cannot_be_sorted_are_named() -> None:
    of = scan("sort", (4, 8), lambda x: relax.op.sort(x, axis=-1), dtype="int64")
    with pytest.raises(CompileError, match="of int64 is not among what can be sorted here"):
        compiled(of)
