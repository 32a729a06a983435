"""GLSL passes values on by shuffles where kernels can require the device's width of subgroups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import te

from tapml.plan.graph_plan import Operator
from tapml_targets.driver import Driver
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
)
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tapml_targets.vulkan.codegen import generate
from tests.compiler.operators import operator, softmax, source
from tests.targets.libraries import Tensors
from tests.targets.vulkan.test_schedule_kind import product_with_a_vector

SQUARE = (("max_num_threads", "64"),)
"""As many threads as subgroups of llvmpipe's eight sum in two rounds."""


def row_sums(dtype: str) -> Operator:
    rows = te.placeholder((3, 200), dtype, name="rows")
    k = te.reduce_axis((0, 200), name="k")
    made = te.compute((3,), lambda i: te.sum(rows[i, k], axis=k), "made")
    return operator("sums", te.create_prim_func([rows, made]))


def compiled(of: Operator, limits: Limits, *options: tuple[str, str]) -> tuple[Library, str]:
    library = generate(source(of), Target("vulkan", options, limits))
    return library, "\n".join(module.code.decode() for module in library.modules)


def called(driver: Driver, library: Library, name: str, *arrays: Any) -> Any:
    tensors = Tensors(driver)
    uses = [tensors.put(each) for each in arrays]
    with LoadedLibrary(driver, library) as loaded:
        loaded.call(name, uses)
    return tensors.get(uses[-1])


@pytest.fixture
def width(driver: Driver) -> int:
    fewest, most = driver.description.limits.subgroup_widths
    assert fewest == most
    if not fewest:
        pytest.skip(f"{driver.description.name}: no kernel can require a width of subgroups")
    return fewest


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_a_row_is_summed_by_shuffles_of_any_dtype(driver: Driver, width: int, dtype: str) -> None:
    limits = driver.description.limits
    if dtype not in limits.features | {"float32", "int32"} or width * width < 64:
        pytest.skip(f"{driver.description.name} lacks {dtype}, or sums 64 threads in three rounds")
    library, text = compiled(row_sums(dtype), limits, *SQUARE)
    (kernel,) = library.kernels.values()
    assert "subgroupShuffleDown(" in text
    assert (kernel.subgroup_width, "subgroups" in kernel.features) == (width, True)
    # Sums are exact, in any order and dtype.
    rows = np.random.default_rng(0).integers(-9, 9, (3, 200)).astype(dtype)
    found = called(driver, library, "sums", rows, np.zeros(3, dtype))
    np.testing.assert_array_equal(found, rows.sum(1))


def test_a_softmax_is_right_by_shuffles(driver: Driver, width: int) -> None:
    """Its maximum and its sum are used by all threads."""
    if width * width < 64:
        pytest.skip(f"{driver.description.name} sums 64 threads in three rounds")
    library, text = compiled(softmax(), driver.description.limits, *SQUARE)
    assert "subgroupShuffleDown(" in text
    given = np.random.default_rng(0).standard_normal((3, 100), "f4")
    powers = np.exp(given.astype(np.float64))
    found = called(driver, library, "softmax", given, np.zeros_like(given))
    np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True), rtol=1e-5)


def test_without_a_width_values_go_through_shared_memory(driver: Driver) -> None:
    """No width stated, or more threads than two rounds of subgroups sum."""
    limits = driver.description.limits
    for given, options in (
        (replace(limits, subgroup_widths=(0, 0)), SQUARE),
        (replace(limits, subgroup_widths=(8, 8), features=frozenset({"subgroups"})), ()),
    ):
        library, text = compiled(row_sums("float32"), given, *options)
        assert "subgroup" not in text
        assert {kernel.subgroup_width for kernel in library.kernels.values()} == {0}


def test_rows_that_share_a_block_read_a_lane_of_their_own_subgroup() -> None:
    """TVM numbers lanes through the block; Vulkan leaves one beyond the subgroup undefined."""
    limits = Limits(features=frozenset({"subgroups"}), subgroup_widths=(32, 32))
    _, text = compiled(product_with_a_vector(), limits, ("schedule_kind", "vulkan"))
    assert "subgroupShuffle(red_buf0_0[0], (uint((threadIdx_y_0 * 32)) & 31u))" in text


WIDTH_SHADER = """#version 450
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = 32) in;
layout(std430, set = 0, binding = 0) buffer Tensor0 { uint o[]; };
void width() {
  uint i = gl_LocalInvocationID.x;
  o[i] = gl_SubgroupSize << 8 | gl_SubgroupInvocationID;
}
void main() { width(); }
"""


def test_a_kernel_requires_full_subgroups_of_its_width(driver: Driver, width: int) -> None:
    module = CodeModule("glsl", WIDTH_SHADER.encode())
    kernel = Kernel("width", "width", 0, 32, features=("subgroups",), subgroup_width=width)
    launch = Launch("width", (BufferArgument("o"),), (1, 1, 1), (32, 1, 1))
    written = Parameter("o", (32,), "uint32", "output")
    library = Library(
        "vulkan", (module,), {"width": kernel},
        {"width": OperatorProgram("width", (written,), (launch,))},
    )  # fmt: skip
    found = called(driver, library, "width", np.zeros(32, np.uint32))
    np.testing.assert_array_equal(found, width << 8 | np.arange(32) % width)
