"""What the self-test finds out about Vulkan devices that are known for something."""

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
    features = driver.description.limits.features
    assert {"loop_iterations", "block_threads", "float32_fma", "float32_tanh_of_45"} <= names
    assert ("float16_steps" in names) == ("float16" in features)
    assert ("float64_nan" in names) == ("float64" in features)
    assert ("int64_arithmetic" in names) == ("int64" in features)


def test_what_is_stated_is_there(found: SelfTest) -> None:
    for name in ("block_threads", "buffer_round_trip", "int64_arithmetic"):
        assert not found.is_unsound(name)


def test_functions_are_as_accurate_as_vulkan_asks(found: SelfTest) -> None:
    errors = [each for each in found.facts if each.name.endswith("_error")]
    assert {each.name for each in errors} >= {"float32_exp_error", "float32_tanh_error"}
    assert not [each.meaning for each in errors if each.sound is False]
    assert any("Vulkan allows" in each.meaning for each in errors)
