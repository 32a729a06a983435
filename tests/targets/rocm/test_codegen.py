"""Operators as HIP C: one text for waves of 32 and of 64, which clang compiles for AMD's GPUs."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from tapml_targets.errors import CompileError
from tapml_targets.library import CodeModule, Library
from tapml_targets.limit_profiles import load_profile, profile_names
from tapml_targets.rocm.assembly import ARCHITECTURES, compile_for
from tapml_targets.rocm.codegen import generate
from tapml_targets.rocm.driver import list_devices, open_device
from tapml_targets.target import Target
from tests.compiler.operators import matmul_transposed, run, softmax, source

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed"
)


def compiled() -> Library:
    return generate(source(softmax()), Target("rocm"))


def test_a_sum_over_lanes_is_right_on_waves_of_both_widths() -> None:
    library = compiled()
    given = np.random.default_rng(0).standard_normal((3, 100), np.float32)
    powers = np.exp(given.astype(np.float64))
    widths = set()
    for description in list_devices():
        driver = open_device(description)
        _, found = run(driver, library, "softmax", [given, np.zeros_like(given)])
        driver.close()
        np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True), rtol=1e-5)
        widths.add(description.limits.subgroup_widths)
    assert widths == {(32, 32), (64, 64)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_clang_compiles_what_is_printed_within_the_limits(architecture: str) -> None:
    limits = load_profile("rocm", architecture).limits
    (module,) = compiled().modules
    (kernel,) = compile_for(module, architecture)
    assert kernel.name == "softmax_kernel"
    assert kernel.vector_registers > 0 and kernel.shared_memory_bytes > 0
    assert (kernel.wave_width, kernel.wave_width) == limits.subgroup_widths
    assert list(kernel.problems(limits)) == []


def test_a_kernel_beyond_the_limits_is_told() -> None:
    (module,) = generate(source(matmul_transposed()), Target("rocm")).modules
    (kernel,) = compile_for(module, "gfx90a")
    narrow = replace(load_profile("rocm", "gfx1100").limits, max_shared_memory_bytes=1024)
    assert [problem.split(";")[0] for problem in kernel.problems(narrow)] == [
        "waves of 64 threads",
        f"{kernel.shared_memory_bytes} bytes of shared memory",
    ]


def test_more_shared_memory_than_the_architecture_has_does_not_compile() -> None:
    (module,) = generate(source(matmul_transposed()), Target("rocm")).modules
    wide = module.code.replace(b"576];", b"57600];")
    assert wide != module.code
    with pytest.raises(CompileError, match="exceeds limit"):
        compile_for(CodeModule("hip-c", wide), "gfx90a")


def test_a_text_that_does_not_compile_is_told_with_its_line() -> None:
    wrong = b'extern "C" __global__ void k(int* o) {\n  o[0] = absent;\n}\n'
    with pytest.raises(CompileError, match=r":2:\d+: error: .*absent"):
        compile_for(CodeModule("hip-c", wrong), "gfx1100")


def test_every_architecture_has_a_profile() -> None:
    assert set(profile_names("rocm")) == set(ARCHITECTURES)
