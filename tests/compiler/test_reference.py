"""The reference runs on numpy arrays as they are, and refuses what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tapml.compiler import host_build
from tapml.compiler.reference import compile_reference
from tapml.compiler.reference_module import tensor
from tapml_targets.errors import CompileError, InputError
from tests.compiler.operators import (
    from_relax,
    matmul_transposed,
    operator,
    renamed,
    scale,
    softmax,
)
from tests.compiler.webgpu_operators import scan


def test_operators_run_by_name_and_write_their_outputs_in_place() -> None:
    reference = compile_reference([softmax(), matmul_transposed()])
    assert set(reference) == {"softmax", "matmul"}
    given = np.random.default_rng(0).standard_normal((5, 48), np.float32)
    weight = np.random.default_rng(1).standard_normal((32, 48), np.float32)
    result = np.full((5, 32), np.nan, np.float32)
    reference["matmul"](given, weight, result)
    np.testing.assert_allclose(result, given @ weight.T, atol=1e-4)


def test_non_contiguous_columns_are_multiplied_correctly() -> None:
    """``a @ b`` without a transpose is scheduled differently from ``a @ b.T``."""
    rows = tirx.Var("n", "int64")
    a, b = (te.placeholder(s, "float32", name=n) for s, n in (((rows, 20), "a"), ((20, 33), "b")))
    k = te.reduce_axis((0, 20), name="k")
    c = te.compute((rows, 33), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    of = operator("plain", te.create_prim_func([a, b, c], index_dtype_override="int64"))
    reference = compile_reference([of])
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((7, 20), "f4"), rng.standard_normal((20, 33), "f4")
    result = np.zeros((7, 33), np.float32)
    reference["plain"](left, right, result)
    np.testing.assert_allclose(result, left @ right, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_curves_keep_their_digits_near_zero(dtype: str) -> None:
    near = np.logspace(-4, -0.1, 60)
    given = np.concatenate([near, -near])[None].astype(dtype)
    curves = {"tanh": np.tanh, "atanh": np.arctanh, "sinh": np.sinh, "asin": np.arcsin}
    for name, curve in curves.items():
        of = from_relax(name, given.shape, getattr(relax.op, name), dtype=dtype)
        found = np.zeros_like(given)
        compile_reference([of])[name](given, found)
        expected = curve(given.astype(np.longdouble))
        np.testing.assert_allclose(found, expected, rtol=3 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sort_has_nan_as_the_largest_and_keeps_the_order_of_equal_ones(axis: int) -> None:
    given = np.array([[2, np.nan, -np.inf, 2, 5], [np.nan, 0, np.nan, -0.0, 1]] * 2, np.float32)
    expected = {
        down: np.argsort(np.where(np.isnan(given), 9, given) * (-1) ** down, axis, kind="stable")
        for down in (False, True)
    }
    calls: dict[str, tuple[Any, Any]] = {
        "up": (lambda x: relax.op.argsort(x, axis, dtype="int64"), expected[False]),
        "down": (lambda x: relax.op.argsort(x, axis, descending=True), expected[True]),
        "sort": (
            lambda x: relax.op.sort(x, axis, descending=True),
            np.take_along_axis(given, expected[True], axis),
        ),
        "topk": (
            lambda x: relax.op.topk(x, 3, axis, ret_type="indices", dtype="int64"),
            np.take(expected[True], range(3), axis),
        ),
    }  # fmt: skip
    for name, (build, wanted) in calls.items():
        of = scan(name, given.shape, build)
        found = np.zeros(wanted.shape, of.parameters[-1].dtype)
        compile_reference([of])[name](given, found)
        np.testing.assert_array_equal(found, wanted, name)


@pytest.mark.parametrize("start", range(5))
def test_arrays_may_start_at_any_element(start: int) -> None:
    reference = compile_reference([softmax()])
    memory = np.random.default_rng(0).standard_normal(2000, np.float32)
    given = memory[start : start + 300].reshape(3, 100)
    result = np.zeros(310, np.float32)[start : start + 300].reshape(3, 100)
    reference["softmax"](given, result)
    np.testing.assert_allclose(result.sum(-1), 1, rtol=1e-5)


def test_read_only_arrays_are_lent_without_a_copy() -> None:
    reference = compile_reference([scale(factor=3.0)])
    given = np.ones((2, 8), np.float32)
    given.flags.writeable = False
    for lent in (given, tensor(given)):
        result = np.zeros((2, 8), np.float32)
        reference["scale"](lent, result)
        np.testing.assert_array_equal(result, 3 * given)


def test_a_lent_tensor_sees_later_changes_of_its_array() -> None:
    reference = compile_reference([scale(factor=3.0)])
    given, result = np.ones((2, 8), np.float32), np.zeros((2, 8), np.float32)
    lent = tensor(given)
    given[:] = 5
    reference["scale"](lent, result)
    np.testing.assert_array_equal(result, np.full((2, 8), 15))


@pytest.mark.parametrize(
    ("shape", "dtype", "complaint"),
    [
        ((2, 7), "float32", r"got \(float32\[2, 8\], float32\[2, 7\]\)"),
        ((3, 8), "float32", "expected to match"),
        ((2, 8), "float64", "expected float32"),
        ((16,), "float32", r"got \(float32\[2, 8\], float32\[16\]\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_both_signatures(
    shape: tuple[int, ...], dtype: str, complaint: str
) -> None:
    reference = compile_reference([scale()])
    with pytest.raises(InputError, match=complaint) as caught:
        reference["scale"](np.ones((2, 8), np.float32), np.zeros(shape, dtype))
    assert "operator 'scale' takes (p0: float32['n', 8], p1: float32['n', 8])" in str(caught.value)


def test_arrays_that_are_not_dense_are_refused() -> None:
    reference = compile_reference([scale()])
    with pytest.raises(InputError, match="compact"):
        reference["scale"](np.ones((2, 16), np.float32)[:, ::2], np.zeros((2, 8), np.float32))


def test_bfloat16_travels_as_its_bits() -> None:
    reference = compile_reference([scale(dtype="bfloat16", factor=2.0)])
    bits = (np.array([[1, 2, 3, 4, -5, 6, 7, 8]], np.float32).view(np.uint32) >> 16).astype("u2")
    result = np.zeros_like(bits)
    reference["scale"](bits, result)
    doubled = (result.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(doubled, [[2, 4, 6, 8, -10, 12, 14, 16]])


def test_half_precision_and_truth_values_run() -> None:
    positive = from_relax(
        "positive",
        ("n",),
        lambda x: relax.op.greater(x, relax.const(0, "float16")),
        dtype="float16",
    )
    reference = compile_reference([positive])
    result = np.zeros(3, bool)
    reference["positive"](np.array([-1, 0, 2], np.float16), result)
    assert result.tolist() == [False, False, True]


def test_symbols_are_passed_by_name_and_a_missing_one_is_an_error() -> None:
    start = tirx.Var("start", "int64")
    given = te.placeholder((16,), "float32", name="given")
    window = te.compute((4,), lambda i: given[start + i], "window")
    of = operator("window", te.create_prim_func([given, window, start]), symbols=("start",))
    reference = compile_reference([of])
    result = np.zeros(4, np.float32)
    reference["window"](np.arange(16, dtype=np.float32), result, symbols={"start": 3})
    assert result.tolist() == [3, 4, 5, 6]
    with pytest.raises(InputError, match="needs values for the symbols start"):
        reference["window"](np.arange(16, dtype=np.float32), result)


def test_an_operator_that_does_not_compile_leaves_the_others() -> None:
    broken = renamed(scale(), "broken")
    object.__setattr__(broken, "function", '{"nodes": []}')
    reference = compile_reference([broken, scale()])
    assert "broken" in reference.failures
    with pytest.raises(CompileError, match="'broken'"):
        reference["broken"]
    result = np.zeros((1, 8), np.float32)
    reference["scale"](np.ones((1, 8), np.float32), result)
    assert result.sum() == 16


def test_names_that_map_to_one_c_identifier_stay_distinct() -> None:
    reference = compile_reference(
        [renamed(scale(factor=2.0), "a.b"), renamed(scale(factor=3.0), "a_b")]
    )
    for name, factor in (("a.b", 2), ("a_b", 3)):
        result = np.zeros((1, 8), np.float32)
        reference[name](np.ones((1, 8), np.float32), result)
        assert result.sum() == 8 * factor


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path))
    return tmp_path / "reference"


def test_a_second_start_compiles_nothing(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_reference([scale(factor=3.0)])
    (kept,) = own_cache.glob("*.so")

    def refuse(*_: object) -> None:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(host_build, "_compile", refuse)
    result = np.zeros((1, 8), np.float32)
    compile_reference([scale(factor=3.0)])["scale"](np.ones((1, 8), np.float32), result)
    assert result.sum() == 24
    assert kept.exists()


def test_a_damaged_shared_object_is_compiled_again(own_cache: Path) -> None:
    compile_reference([scale(factor=3.0)])
    (kept,) = own_cache.glob("*.so")
    whole = kept.read_bytes()
    # A new file: the old one is still mapped into this process.
    kept.unlink()
    kept.write_bytes(whole[:1000])
    result = np.zeros((1, 8), np.float32)
    compile_reference([scale(factor=3.0)])["scale"](np.ones((1, 8), np.float32), result)
    assert result.sum() == 24
    assert kept.read_bytes() == whole


def test_a_machine_without_a_linker_compiles_in_memory(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = np.zeros((1, 8), np.float32)
    compile_reference([scale(factor=3.0)])["scale"](np.ones((1, 8), np.float32), result)
    assert result.sum() == 24
    assert not list(own_cache.glob("*.so"))
