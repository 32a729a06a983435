"""Operators as GLSL: what a device can store and compute decides the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tapml.plan.graph_plan import Operator
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError
from tapml_targets.library import Library, launches
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tapml_targets.vulkan.codegen import generate
from tapml_targets.vulkan.glslang import compile_glsl
from tests.compiler.operators import from_relax, operator, run, softmax, source

Array = np.ndarray[Any, Any]
EVERYTHING = frozenset({"float16", "float64", "int16", "int64", "int8"})
BIG = 1 << 40


def compiled(of: Operator, features: frozenset[str] = frozenset()) -> Library:
    return generate(source(of), Target("vulkan", limits=Limits(features=features)))


def text_of(library: Library) -> str:
    return "\n".join(module.code.decode() for module in library.modules)


def features_of(library: Library) -> set[str]:
    return {feature for kernel in library.kernels.values() for feature in kernel.features}


def of_elements(compute: Callable[[Any], Any], given: str, name: str = "elements") -> Operator:
    """A function of each element of ``(n, 6)``."""
    tensor = te.placeholder((tirx.Var("n", "int64"), 6), given, name="given")
    made = te.compute(tensor.shape, lambda i, j: compute(tensor[i, j]), "made")
    return operator(name, te.create_prim_func([tensor, made]))


def apply(driver: Driver, of: Operator, given: Array, dtype: str) -> Array:
    library = compiled(of, driver.description.limits.features)
    _, found = run(driver, library, of.name, [given, np.zeros(given.shape, dtype)])
    return found


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "bool"])
@pytest.mark.parametrize("native", [False, True])
def test_small_elements_are_stored_as_the_device_can(
    driver: Driver, dtype: str, native: bool
) -> None:
    """As what they are, or several to a word that many threads write."""

    def changed(x: Any) -> Any:
        return tirx.Not(x) if dtype == "bool" else x + tirx.const(3, dtype)

    features = EVERYTHING if native else frozenset()
    if not features <= driver.description.limits.features:
        pytest.skip(f"{driver.description.name} stores words alone")
    rng = np.random.default_rng(0)
    given = rng.integers(0, 2 if dtype == "bool" else 256, (37, 6)).astype(dtype)
    library = compiled(of_elements(changed, dtype), features)
    assert ("atomicOr" in text_of(library)) != native
    expected = ~given if dtype == "bool" else given + np.array(3, dtype)
    _, found = run(driver, library, "elements", [given, np.zeros_like(given)])
    np.testing.assert_array_equal(found, expected)


def test_64_bits_are_used_where_32_are_not_proven_to_do(driver: Driver) -> None:
    of = of_elements(lambda x: x * tirx.const(3, "int64") + tirx.const(BIG, "int64"), "int64")
    given = np.array([[0, -1, 5, BIG, -BIG, 1 << 60]], np.int64)
    assert features_of(compiled(of, EVERYTHING)) == {"int64"}
    np.testing.assert_array_equal(apply(driver, of, given, "int64"), given * 3 + BIG)


def test_64_bits_are_two_words_on_a_device_without_them(driver: Driver) -> None:
    def changed(x: Any) -> Any:
        seven = tirx.const(7, "int64")
        quotients = tirx.floordiv(x, -seven) ^ tirx.truncmod(x, seven)
        parts = tirx.Select(x < x * x, x >> tirx.const(33, "int64"), x << seven)
        return quotients + parts + x.astype("float32").astype("int64")

    given = np.array([[0, -1, 5, BIG + 12345, -BIG - 7, (1 << 60) + 1]], np.int64)
    library = compiled(of_elements(changed, "int64"), frozenset())
    assert features_of(library) == set()
    _, found = run(driver, library, "elements", [given, np.zeros_like(given)])
    parts = np.where(given < given * given, given >> 33, given << 7)
    expected = ((given // -7) ^ np.fmod(given, 7)) + parts
    np.testing.assert_array_equal(found, expected + given.astype(np.float32).astype(np.int64))


def test_a_byte_of_a_number_below_zero_has_its_lower_bits(driver: Driver) -> None:
    of = of_elements(lambda x: x.astype("uint8"), "float32")
    given = np.array([[-1.0, -100.5, 3.7, 255.0, 0.0, 77.0]], np.float32)
    expected = given.astype(np.int32).astype(np.uint8)
    np.testing.assert_array_equal(apply(driver, of, given, "uint8"), expected)


def test_a_number_of_half_precision_that_no_variable_holds_is_asked_for(driver: Driver) -> None:
    def halved(x: Any) -> Any:
        return (x.astype("float16") * tirx.const(2, "float16")).astype("float32")

    of = of_elements(halved, "float32")
    assert features_of(compiled(of, EVERYTHING)) == {"float16"}
    if "float16" in driver.description.limits.features:
        given = np.array([[0.1, -1.5, 3e4, 7e4, 1e-7, 0]], np.float32)
        with np.errstate(over="ignore"):
            expected = (given.astype(np.float16) * np.float16(2)).astype(np.float32)
        np.testing.assert_array_equal(apply(driver, of, given, "float32"), expected)


def test_numbers_of_32_bits_are_compared_in_64(driver: Driver) -> None:
    """Mesa 22.3 compares `int64_t(x)` of an int with a constant wrongly."""
    if "int64" not in driver.description.limits.features:
        pytest.skip(f"{driver.description.name} has no 64-bit integers")

    def changed(x: Any) -> Any:
        wide = x.astype("int64")
        found = tirx.Select(wide < tirx.const(5, "int64"), wide * tirx.const(BIG, "int64"), wide)
        return tirx.max(found, tirx.const(-3, "int64"))

    given = np.random.default_rng(0).integers(-9, 9, (37, 6)).astype(np.int32)
    wide = given.astype(np.int64)
    of = of_elements(changed, "int32")
    assert "int64_t" in text_of(compiled(of, EVERYTHING))
    expected = np.maximum(np.where(wide < 5, wide * BIG, wide), -3)
    np.testing.assert_array_equal(apply(driver, of, given, "int64"), expected)


def test_32_bits_are_used_where_they_are_proven_to_do(driver: Driver) -> None:
    library = compiled(softmax(), EVERYTHING)
    assert features_of(library) == set()
    assert "int64_t" not in text_of(library)


@pytest.mark.parametrize("divisor", [3, -3])
def test_quotients_and_remainders_of_negative_numbers_are_those_of_tvm(
    driver: Driver, divisor: int
) -> None:
    given = np.array([[-7, -6, -1, 0, 5, 7]], np.int32)
    by = tirx.const(divisor, "int32")
    for compute, expected in (
        (lambda x: tirx.truncmod(x, by), np.fmod(given, divisor)),
        (lambda x: tirx.truncdiv(x, by), np.trunc(given / divisor)),
        (lambda x: tirx.floormod(x, by), np.mod(given, divisor)),
        (lambda x: tirx.floordiv(x, by), np.floor_divide(given, divisor)),
    ):
        found = apply(driver, of_elements(compute, "int32"), given, "int32")
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("value", [0.1, -2.5, 1e-40, 3.4028234663852886e38, 16777217.0, 1 / 3])
def test_every_constant_is_its_own_bits(driver: Driver, value: float) -> None:
    of = of_elements(lambda x: x + tirx.const(value, "float32"), "float32")
    found = apply(driver, of, np.zeros((1, 6), np.float32), "float32")
    with np.errstate(over="ignore"):
        expected = np.float32(value)
    is_denormal = abs(expected) < np.finfo(np.float32).tiny
    if is_denormal and not found.any() and "llvmpipe" not in driver.description.name:
        pytest.skip(f"{driver.description.name} flushes denormal sums, as Vulkan allows")
    np.testing.assert_array_equal(found, np.full((1, 6), expected))


@pytest.mark.parametrize("name", ["erf", "tanh", "exp", "log", "sqrt", "sin", "cos", "floor"])
def test_functions_are_right(driver: Driver, name: str) -> None:
    given = np.array([[0.01, 0.5, 1.5, 3.0, 20.0, 100.0]], np.float32)
    of = from_relax(name, ("n", 6), getattr(relax.op, name))
    wide = given.astype(np.float64)
    if name == "erf":
        from math import erf

        expected = np.vectorize(erf)(wide)
    else:
        expected = getattr(np, name)(wide)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(
            apply(driver, of, given, "float32"),
            expected.astype(np.float32),
            rtol=1e-5,
            atol=3e-7,
        )


def test_float64_is_computed_where_the_device_has_it(driver: Driver) -> None:
    of = of_elements(lambda x: x * tirx.const(1 / 3, "float64"), "float64")
    assert features_of(compiled(of)) == {"float64"}
    if "float64" not in driver.description.limits.features:
        return
    given = np.random.default_rng(0).standard_normal((5, 6))
    np.testing.assert_array_equal(apply(driver, of, given, "float64"), given * (1 / 3))


@pytest.mark.parametrize("name", ["a__b", "gl_thing", "9lives", "main", "shared", "input"])
def test_a_name_that_glsl_forbids_is_written_otherwise(name: str) -> None:
    library = compiled(of_elements(lambda x: x + tirx.const(1, "float32"), "float32", name))
    ((_, kernel),) = library.kernels.items()
    text = text_of(library)
    assert f"void {kernel.symbol}()" in text
    assert "__" not in text
    assert compile_glsl(text, kernel.name)


def test_every_text_compiles_alone_and_scalars_follow_buffers() -> None:
    library = compiled(softmax())
    (program,) = library.operators.values()
    for launch in launches(program.statements):
        kinds = [type(each).__name__ for each in launch.arguments]
        assert kinds == sorted(kinds), "buffers first"
    for name, kernel in library.kernels.items():
        assert compile_glsl(library.modules[kernel.module].code.decode(), name)


def test_more_numbers_than_push_constants_hold_are_refused() -> None:
    extents = [tirx.Var(f"n{i}", "int64") for i in range(40)]
    starts = [tirx.Var(f"s{i}", "int64") for i in range(40)]
    given = te.placeholder((extents[0],), "float32", name="given")
    made = te.compute((8,), lambda i: sum((given[i + s] for s in starts), given[i]), "made")
    of = operator(
        "many",
        te.create_prim_func([given, made, *starts]),
        symbols=tuple(str(s.name) for s in starts),
    )
    with pytest.raises(CompileError, match=r"takes 4\d numbers: \d+ bytes of push constants"):
        compiled(of)
