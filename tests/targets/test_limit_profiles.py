"""Limits of devices that are not at hand, as the platforms bring them."""

from __future__ import annotations

import re

import pytest

from tapml_targets.limit_profiles import load_profile, profile_names
from tapml_targets.platforms import platform_folder, platform_names

PROFILES = [(name, each) for name in platform_names() for each in profile_names(name)]


@pytest.mark.parametrize(("platform", "name"), PROFILES)
def test_every_number_has_its_source_and_every_profile_a_description(
    platform: str, name: str
) -> None:
    """The source is behind the number or in the lines above it."""
    assert load_profile(platform, name).description
    file = platform_folder(platform) / "profiles" / f"{name}.toml"
    lines = file.read_text("utf-8").splitlines()
    start = lines.index("[limits]")
    numbers = [i for i, line in enumerate(lines) if i > start and re.match(r"\w+ = [\[\d]", line)]
    without = [
        lines[i]
        for i in numbers
        if "#" not in lines[i]
        and not lines[i - 1].startswith("#")
        and not lines[i].startswith("features")
    ]
    assert numbers and not without
    assert "http" in file.read_text("utf-8") or "required" in file.read_text("utf-8")


def test_the_platforms_of_the_paper_have_profiles_of_their_families() -> None:
    known = {
        platform: {name for each, name in PROFILES if each == platform} for platform, _ in PROFILES
    }
    assert {f"apple{family}" for family in range(3, 10)} <= known["metal"]
    assert {"sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"} <= known[
        "cuda"
    ]
    assert {"gfx90a", "gfx942", "gfx1100", "gfx1201"} <= known["rocm"]
    for platform in ("opencl", "vulkan", "webgpu"):
        assert {"adreno", "mali"} <= known[platform]
