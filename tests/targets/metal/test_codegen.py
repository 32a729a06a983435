"""What the code generator prints for Metal; that it is right is shown by the conformance suite."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from tapml.kernels.signature_reader import read_entries, read_signature
from tapml.plan.graph_plan import Operator
from tapml_targets.errors import CompileError
from tapml_targets.library import Library, ScalarArgument, launches
from tapml_targets.limit_profiles import load_profile, profile_names
from tapml_targets.limits import Limits
from tapml_targets.metal import simulated
from tapml_targets.metal.codegen import generate
from tapml_targets.metal.interface import read_interface
from tapml_targets.metal.language import LANGUAGE
from tapml_targets.target import Target
from tests.compiler.operators import matmul_transposed, operator, run, softmax, source
from tests.targets.vulkan.test_schedule_kind import COLUMNS, ROWS, product_with_a_vector


def compiled(of: Operator, limits: Limits = Limits(), **options: str) -> Library:
    return generate(source(of), Target("metal", tuple(sorted(options.items())), limits))


def text(library: Library) -> str:
    (module,) = library.modules
    return module.code.decode()


def elementwise(compute: Any, dtype: str = "float32", count: str = "int64") -> Operator:
    given = te.placeholder((tirx.Var("n", count), 8), dtype, name="given")
    made = te.compute(given.shape, lambda i, j: compute(given[i, j]), "made")
    return operator("elementwise", te.create_prim_func([given, made]))


@pytest.mark.parametrize("count", ["int32", "int64"])
def test_the_driver_reads_from_the_text_what_the_launch_passes(count: str) -> None:
    """TVM pads numbers of 32 bits for its own runtime."""
    library = compiled(elementwise(lambda x: x * 2, count=count))
    (launch,) = launches(library.operators["elementwise"].statements)
    passed = tuple(a.dtype for a in launch.arguments if isinstance(a, ScalarArgument))
    interface = read_interface(text(library), "elementwise_kernel")
    assert passed and interface.scalars == passed
    assert interface.buffers + len(passed) == len(launch.arguments)
    assert "[2]" not in text(library) and "[0]" not in text(library)


def test_the_kernels_of_one_operator_are_one_module_and_its_reader_knows_them() -> None:
    library = compiled(softmax(), schedule="fallback")
    written = text(library)
    assert len(library.kernels) > 1 and written.count("#include <metal_stdlib>") == 1
    assert sorted(read_entries(LANGUAGE, written)) == sorted(library.kernels)
    for name in library.kernels:
        signature = read_signature(LANGUAGE, written, name)
        assert signature is not None
        numbers = tuple(a.dtype for a in signature.arguments if a.kind == "scalar")
        assert numbers == read_interface(written, name).scalars


def test_tanh_is_metals_own_because_tvms_loses_small_numbers() -> None:
    written = text(compiled(elementwise(tirx.tanh)))
    assert "tanh(given_ptr[" in written and "exp(" not in written


def test_sums_go_through_simd_groups_where_their_width_is_known() -> None:
    apple4, apple7 = (load_profile("metal", name).limits for name in ("apple4", "apple7"))
    shuffled, plain = compiled(softmax(), apple7), compiled(softmax(), apple4)
    assert "simd_shuffle_down(" in text(shuffled) and "simd_" not in text(plain)
    # No lane passes on what it has not set: that is undefined, and a compiler may drop the lane.
    set_first = re.findall(r"thread float red_buf\w*\[1\](.*);", text(shuffled))
    assert set_first and all(each == " = {0}" for each in set_first)
    (kernel,) = shuffled.kernels.values()
    assert (kernel.features, kernel.subgroup_width) == (("subgroups",), 32)
    (kernel,) = plain.kernels.values()
    assert (kernel.features, kernel.subgroup_width) == ((), 0)


def test_rows_that_share_a_block_read_a_lane_of_their_own_simd_group() -> None:
    """TVM numbers lanes through the block; Metal leaves one beyond the group undefined."""
    (description,) = simulated.list_devices(0)
    library = compiled(product_with_a_vector(), description.limits, schedule_kind="vulkan")
    assert re.search(r"simd_shuffle\(red_buf0\[0\], .*32.* & 31\)", text(library))
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((ROWS, COLUMNS), "f4"), rng.standard_normal(COLUMNS, "f4")
    driver = simulated.open_device(description)
    *_, found = run(driver, library, "product", [a, x, np.zeros(ROWS, np.float32)])
    driver.close()
    np.testing.assert_allclose(found, a @ x, atol=1e-4)


def test_a_module_asks_for_fast_mathematics_only_where_the_target_does() -> None:
    usual, fast = compiled(softmax()), compiled(softmax(), fast_math="1")
    assert (usual.modules[0].options, fast.modules[0].options) == ((), ("fast-math",))
    assert text(usual) == text(fast)


def test_elements_that_metal_has_not_are_refused_by_their_type() -> None:
    with pytest.raises(CompileError, match="float64"):
        compiled(elementwise(lambda x: x + 1, "float64"))


@pytest.mark.parametrize("name", profile_names("metal"))
def test_kernels_fit_every_profile_of_apples_gpus(name: str) -> None:
    limits = load_profile("metal", name).limits
    for of in (softmax(), matmul_transposed()):
        for kernel in compiled(of, limits).kernels.values():
            assert kernel.threads_per_block <= limits.max_threads_per_block
            assert kernel.shared_memory_bytes <= limits.max_shared_memory_bytes
            assert set(kernel.features) <= limits.features
