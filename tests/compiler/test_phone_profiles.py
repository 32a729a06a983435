"""Profiles of phones for Vulkan and OpenCL: every number has a source, and kernels keep to them."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tapml_targets.limit_profiles import load_profile, profile_names
from tapml_targets.platforms import platform_folder
from tapml_targets.target import Target
from tests.compiler.operators import matmul_transposed, softmax, source

PHONES = [(platform, name) for platform in ("opencl", "vulkan") for name in profile_names(platform)]


@pytest.mark.parametrize(("platform", "name"), PHONES)
def test_every_number_has_its_source(platform: str, name: str) -> None:
    text = (platform_folder(platform) / "profiles" / f"{name}.toml").read_text("utf-8")
    stated = [line for line in text.partition("[limits]")[2].splitlines() if "=" in line]
    assert stated and all(re.search(r"\S  # \S", line) for line in stated), stated
    assert "https://" in text
    assert load_profile(platform, name).description


@pytest.mark.parametrize(("platform", "name"), PHONES)
def test_kernels_made_for_a_phone_fit_it(platform: str, name: str) -> None:
    limits = load_profile(platform, name).limits
    generate = import_module(f"tapml_targets.{platform}.codegen").generate
    for of in (softmax(), matmul_transposed()):
        library = generate(source(of), Target(platform, limits=limits))
        for kernel in library.kernels.values():
            most = limits.max_threads_per_block or 1024
            assert kernel.threads_per_block <= most
            assert kernel.shared_memory_bytes <= limits.max_shared_memory_bytes
            assert set(kernel.features) <= limits.features
