"""What the self-test finds out about WebGPU adapters that are known for something."""

from __future__ import annotations

import pytest

from tapml_targets.driver import Driver
from tapml_targets.self_test.facts import SelfTest
from tapml_targets.self_test.measure import run_self_test


@pytest.fixture(scope="module")
def found(driver: Driver) -> SelfTest:
    return run_self_test(driver)


def test_every_part_gives_facts(driver: Driver, found: SelfTest) -> None:
    assert found.problems == ()
    names = {fact.name for fact in found.facts}
    assert {"loop_iterations", "block_threads", "float32_fma", "float32_tanh_of_45"} <= names
    assert ("float16_steps" in names) == ("float16" in driver.description.limits.features)
    assert "int64_arithmetic" not in names, "WGSL has none"


def test_the_largest_block_and_buffer_are_as_the_driver_states(found: SelfTest) -> None:
    assert not found.is_unsound("block_threads")
    assert not found.is_unsound("buffer_round_trip")


def test_a_driver_that_ends_long_loops_is_detected(driver: Driver, found: SelfTest) -> None:
    alone, nested = found.fact("loop_iterations"), found.fact("nested_loop_iterations")
    assert alone is not None and nested is not None
    assert alone.sound == nested.sound
    if "llvmpipe" not in driver.description.name:
        assert alone.sound
    elif not alone.sound:
        # Mesa counts an invocation's iterations up to 65,535, those of nested loops together.
        assert isinstance(alone.value, int) and 60_000 < alone.value <= 65_535


def test_functions_are_as_accurate_as_wgsl_asks(found: SelfTest) -> None:
    errors = [each for each in found.facts if each.name.endswith("_error")]
    assert {each.name for each in errors} >= {"float32_exp_error", "float32_tanh_error"}
    assert not [each.meaning for each in errors if each.sound is False]
    assert not [each.meaning for each in found.facts if "OpenCL" in each.meaning]
    assert any("WGSL allows" in each.meaning for each in errors)
