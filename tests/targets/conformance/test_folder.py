"""What a platform's folder has, and what generic code does where it has less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

import tapml
from tapml_targets import driver_discovery
from tapml_targets.platforms import optional_part, own_platforms, platform_names
from tapml_targets.self_test.float_facts import _EXACT

every_platform = pytest.mark.parametrize("platform", platform_names())


# mypy, which the checks run, holds these to their type.
_TYPED: Final[dict[str, Callable[[int], tapml.Device]]] = {
    "cpu": tapml.cpu,
    "cuda": tapml.cuda,
    "metal": tapml.metal,
    "opencl": tapml.opencl,
    "rocm": tapml.rocm,
    "vulkan": tapml.vulkan,
    "webgpu": tapml.webgpu,
}


def test_every_platform_has_its_typed_name() -> None:
    assert set(own_platforms()) == set(_TYPED) <= set(tapml.__all__)


@every_platform
def test_a_platform_with_a_self_test_says_how_far_off_a_function_may_be(platform: str) -> None:
    rules = optional_part(platform, "accuracy")
    assert (rules is None) == (optional_part(platform, "self_test") is None)
    if rules is None:
        return
    x = np.array([0.25, 0.75, 1.5, 16.0])
    assert rules.RULES
    for function in _EXACT:
        for dtype in ("float32", "float16"):
            allowed = np.broadcast_to(rules.allowed_ulp(function, dtype, x), x.shape)
            assert np.all(np.isfinite(allowed) & (allowed >= 0.5)), (function, dtype)


def test_a_function_that_discovery_lacks_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    class Discovery:
        @staticmethod
        def drivers_state() -> str:
            return "one driver"

    monkeypatch.setattr(driver_discovery, "optional_part", lambda *_: Discovery)
    found = driver_discovery.driver_discovery("opencl")
    assert found.drivers_state() == "one driver"
    assert found.left_out() == {}
    assert found.prepare_environment({"A": "1"}) == {"A": "1"}


def test_a_platform_without_discovery_has_all_defaults() -> None:
    found = driver_discovery.driver_discovery("cpu")
    assert found.drivers_state() == ""
    assert found.set_faulty_drivers_aside(lambda _: "it crashed") == {}
    found.forget_faulty_drivers()
