"""The self-test on this machine's devices, and on kernels that are wrong on purpose."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tapml_targets.driver import Driver
from tapml_targets.library import Library
from tapml_targets.opencl.self_test import self_test_library
from tapml_targets.self_test.facts import Fact, SelfTest
from tapml_targets.self_test.measure import run_self_test
from tapml_targets.self_test.parts import parts_of

GRAVE = {
    "buffer_bytes", "buffer_round_trip", "loop_iterations", "nested_loop_iterations",
    "block_threads", "int64_arithmetic", "float32_nan", "float64_nan", "float32_function_edges",
}  # fmt: skip

# Their kernels are edited in OpenCL C.
pytestmark = pytest.mark.platforms("opencl")


def edited(part: str, *changes: tuple[str, str]) -> dict[str, Library]:
    """The platform's Library of a part with other text in its source."""
    library = self_test_library(part)
    (module,) = library.modules
    text = module.code.decode()
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text)
        assert count, pattern
    return {part: replace(library, modules=(replace(module, code=text.encode()),))}


def found(driver: Driver, *changes: tuple[str, str], part: str = "core") -> SelfTest:
    result = run_self_test(driver, parts=(part,), libraries=edited(part, *changes))
    assert result.problems == ()
    return result


def fact(result: SelfTest, name: str) -> Fact:
    measured = result.fact(name)
    assert measured is not None
    return measured


def test_this_machine_s_devices_are_sound_where_it_counts(driver: Driver) -> None:
    result = run_self_test(driver)
    assert result.problems == ()
    assert result.grave == ()
    names = [each.name for each in result.facts]
    assert len(set(names)) == len(names)
    assert {each.name for each in result.facts if each.grave} >= GRAVE
    assert all(each.meaning and each.source in ("measured", "driver") for each in result.facts)


def test_measured_limits_are_compared_with_the_stated_ones(driver: Driver) -> None:
    result = run_self_test(driver, parts=("buffers", "core"))
    limits = driver.description.limits
    assert fact(result, "block_threads").value == limits.max_threads_per_block
    assert fact(result, "buffer_bytes").value == min(limits.max_buffer_bytes, 256 << 20)


def test_half_precision_is_asked_where_the_device_has_it(driver: Driver) -> None:
    result = run_self_test(driver)
    has = "float16" in driver.description.limits.features
    assert ("float16" in parts_of(driver.description)) == has
    assert fact(result, "float16").value == ("present" if has else "absent")
    if has:
        assert fact(result, "float16_1035_minus_1031").value == 4.0
        assert fact(result, "float16_conversion").value == "ties to even"


CUT = (r"i < sizes\[0\]", r"i < min(sizes[0], 65535)")
CUT_INSIDE = (r"j < sizes\[2\]", r"j < sizes[2] && i * sizes[2] + j < 65535")


def test_a_loop_that_ends_early_is_found_with_its_bound(driver: Driver) -> None:
    result = found(driver, CUT)
    assert fact(result, "loop_iterations").sound is False
    assert fact(result, "nested_loop_iterations").sound is True
    assert fact(result, "loop_iterations").value == 65_535
    assert "65,535 without an error" in fact(result, "loop_iterations").meaning


def test_nested_loops_that_are_counted_together_are_found(driver: Driver) -> None:
    result = found(driver, CUT_INSIDE)
    assert fact(result, "loop_iterations").sound is True
    assert fact(result, "nested_loop_iterations").value == 65_535
    assert result.traits[0] == "ends loops after 65,535 iterations"


def test_contraction_where_it_is_forbidden_is_unsound(driver: Driver) -> None:
    result = found(driver, (r"return product \+ c;", "return fma(a, b, c);"))
    assert fact(result, "float32_multiply_add_apart").value == "fused"
    assert fact(result, "float32_multiply_add_apart").sound is False
    assert result.grave == ()


def test_contraction_where_it_is_allowed_is_a_property(driver: Driver) -> None:
    fused = fact(found(driver, (r"= x \* y \+ z;", "= fma(x, y, z);")), "float32_multiply_add")
    assert (fused.value, fused.sound) == ("fused", None)
    apart = found(driver, (r"= x \* y \+ z;", "= tapml_apart(x, y, z);"))
    separate = fact(apart, "float32_multiply_add")
    assert (separate.value, separate.sound, separate.trait) == ("separate", True, "")


def test_a_wrong_sum_is_neither_fused_nor_separate(driver: Driver) -> None:
    wrong = fact(found(driver, (r"= x \* y \+ z;", "= x * y - z;")), "float32_multiply_add")
    assert (wrong.value, wrong.sound) == ("neither", False)


FLUSH = "(fabs({0}) < T(1.17549435e-38f) ? copysign(T(0), {0}) : {0})".replace("T(", "((T)")


def test_flushed_inputs_and_flushed_results_are_separate_facts(driver: Driver) -> None:
    inputs = found(driver, (r"= x \* y;", f"= {FLUSH.format('x')} * y;"))
    assert fact(inputs, "float32_denormal_inputs").value == "flushed"
    assert fact(inputs, "float32_denormal_results").sound is True
    results = found(driver, (r"= x \* y;", f"= {FLUSH.format('(x * y)')};"))
    assert fact(results, "float32_denormal_results").sound is False
    assert fact(results, "float32_denormal_inputs").sound is True
    assert results.traits.count("flushes float32 denormals") == 1
    assert results.grave == ()


def test_a_tanh_made_of_exponentials_breaks_at_45(driver: Driver) -> None:
    quotient = "(exp(x) - exp(-x)) / (exp(x) + exp(-x))"
    sound = fact(found(driver), "float32_tanh_of_45")
    assert sound.value == 1.0 or not sound.grave
    result = found(driver, (r"tanh\(x\)", quotient.replace("x)", "x * L(2))")))
    broken = fact(result, "float32_tanh_of_45")
    assert (broken.value, broken.sound, broken.grave) == ("nan", False, True)
    assert fact(result, "float32_function_edges").sound is False


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ((r"= x != x \? L\(1\) : L\(0\)", "= L(0)"), "float32_nan", "lost in x != x"),
        ((r"= x \+ y;", "= fmax(x, y);"), "float32_nan", "lost in add"),
        ((r"= x;", "= x + L(0);"), "float32_negative_zero", "lost in copy"),
        ((r"shared\[last - i\]", "shared[i]"), "block_threads", None),
        ((r"\(long\)\(\(ulong\)x \* \(ulong\)y\)", "(int)x * (int)y"), "int64_arithmetic", None),
    ],
)
def test_lost_values_are_named(
    driver: Driver, change: tuple[str, str], name: str, value: str | None
) -> None:
    result = fact(found(driver, change), name)
    assert result.sound is False
    assert value is None or result.value == value


@pytest.mark.parametrize(
    ("change", "name", "sound"),
    [
        ((r"= x / y;", "= x * (L(1) / y);"), "float32_divide_error", None),
        ((r"= x / y;", "= x / y * L(1.00001);"), "float32_divide_error", False),
        ((r"= sqrt\(x\);", "= exp(L(0.5) * log(x));"), "float32_square_root_error", None),
    ],
)
def test_accuracy_is_reported_in_ulp(
    driver: Driver, change: tuple[str, str], name: str, sound: bool | None
) -> None:
    result = fact(found(driver, change), name)
    assert result.unit == "ulp"
    assert isinstance(result.value, float)
    assert result.value > 0.5
    assert result.sound is sound


def half(driver: Driver) -> None:
    if "float16" not in driver.description.limits.features:
        pytest.skip(f"{driver.description.vendor_platform} has no float16")


def test_half_precision_kept_wider_or_rounded_down_is_reported(driver: Driver) -> None:
    half(driver)
    wide = (r"= \(x \+ y\) \+ z;", "= (half)((float)x + (float)y + (float)z);")
    steps = fact(found(driver, wide, part="float16"), "float16_steps")
    assert (steps.value, steps.sound) == ("kept wider", None)
    # PoCL 7 has no convert_half_rtz.
    down = (r"out\[i\] = \(half\)a\[i\]", "vstore_half_rtz(a[i], i, out)")
    result = found(driver, down, part="float16")
    assert fact(result, "float16_conversion").sound is False
    assert fact(result, "float16_conversion").grave


def test_a_module_that_does_not_build_costs_its_part_alone(driver: Driver) -> None:
    libraries = edited("float64", (r"double", "no_such_type"))
    result = run_self_test(driver, parts=("core", "float64"), libraries=libraries)
    (problem,) = result.problems
    assert problem.startswith("float64: ")
    assert "no_such_type" in problem
    assert fact(result, "loop_iterations").sound
    assert result.fact("float64_nan") is None


def with_option(option: str) -> dict[str, Library]:
    library = self_test_library("core")
    (module,) = library.modules
    return {"core": replace(library, modules=(replace(module, options=(option,)),))}


def test_a_driver_told_to_flush_denormals_is_seen_doing_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Imported once a driver is open: pyopencl finds its drivers when it is first imported.
    from tapml_targets.opencl.language import BUILD_OPTIONS

    monkeypatch.setitem(BUILD_OPTIONS, "flushed", "-cl-denorms-are-zero")
    result = run_self_test(driver, parts=("core",), libraries=with_option("flushed"))
    assert "flushes float32 denormals" in result.traits
    assert fact(result, "float32_denormal_inputs").sound is False
    assert fact(result, "float32_denormal_results").sound is False


def test_fast_math_that_ignores_nan_is_found(driver: Driver) -> None:
    result = run_self_test(driver, parts=("core",), libraries=with_option("fast-math"))
    assert "x != x" in str(fact(result, "float32_nan").value)
    assert fact(result, "float32_nan") in result.grave
