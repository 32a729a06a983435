"""A schedule that a device cannot run gives way to dlight's fallback rule."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tapml_targets.call_plan import TensorShape, plan_call
from tapml_targets.codegen import gpu, lowering
from tapml_targets.codegen.host_program import read_host_function
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.driver import ScalarUse
from tapml_targets.library import CodeModule, Kernel, Library, Parameter, Role, launches
from tapml_targets.library_format import pack, unpack
from tapml_targets.limits import Limits
from tests.compiler.operators import matmul_transposed, source

_ROLES: tuple[tuple[str, Role], ...] = (("a", "input"), ("b", "output"))
TARGET = gpu.tvm_target("opencl", Limits(), {})


def built(of: OperatorSource, scheduled: Any) -> Library:
    """The launches of a scheduled module, without its source."""
    lowered = lowering.lower(scheduled, TARGET)
    program = read_host_function(lowered.host, of)
    kernels = {
        each.kernel: Kernel(each.kernel, each.kernel, 0, gpu.block_threads(each))
        for each in launches(program.statements)
    }
    return Library("opencl", (), kernels, {of.name: program})


def made(wanted: str, finish: gpu.Change = gpu.as_it_is, limits: Limits = Limits()) -> Library:
    of = source(matmul_transposed())
    scheduler = gpu.Scheduler(wanted, TARGET, limits, built)
    return scheduler.library(of, lowering.load_function(of), finish)


def with_shared_memory_of_the_launch(module: Any) -> Any:
    """The module with its shared memory sized by the launch, as schedules for CUDA have it."""
    text = module.script(show_meta=True)
    return tvm.script.from_source(text.replace('scope="shared"', 'scope="shared.dyn"'))


def test_launches_that_the_device_does_not_offer_give_way_to_the_fallback_rule() -> None:
    usual, fallback = made("dlight"), made("fallback")
    assert usual != fallback
    assert made("dlight", with_shared_memory_of_the_launch) == fallback


def test_a_device_that_offers_it_gives_a_launch_its_shared_memory() -> None:
    of = source(matmul_transposed())
    rules = gpu.tvm_target("cuda", Limits(), {})
    function = lowering.load_function(of)
    scheduled = lowering.schedule(function, rules, [tvm.s_tir.dlight.gpu.Matmul()])
    declared = lowering.lower(scheduled, rules)
    lowered = lowering.lower(with_shared_memory_of_the_launch(scheduled), rules)
    program = read_host_function(lowered.host, of, {"dynamic_shared_memory"})
    (launch,) = launches(program.statements)
    (declared_bytes,) = lowering.shared_memory_bytes(declared.device).values()
    assert launch.dynamic_shared_bytes == declared_bytes > 0


def test_kernels_beyond_the_limits_give_way_to_the_fallback_rule() -> None:
    (kernel,) = made("dlight").kernels.values()
    few = Limits(max_threads_per_block=kernel.threads_per_block - 1)
    assert made("dlight", limits=few) == made("fallback")


@T.prim_func
def scale_by_a_number_of_the_host(a: T.handle, b: T.handle) -> None:
    """B = A (n / 10 + 1 / n - 3): the factor is computed before the launch."""
    n = T.int64()
    given = T.match_buffer(a, (n,), "float32")
    made = T.match_buffer(b, (n,), "float32")
    size: T.let[T.float32] = T.Cast("float32", n)
    factor: T.let[T.float32] = size * T.float32(0.1) + T.float32(1) / size - T.float32(3)
    for i in T.thread_binding(n, thread="blockIdx.x"):
        made[i] = given[i] * factor


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_number_that_the_host_computes_in_floats_is_an_argument(count: int) -> None:
    parameters = tuple(Parameter(name, ("n",), "float32", role) for name, role in _ROLES)
    of = OperatorSource("scale", "", parameters)
    lowered = lowering.lower(tvm.IRModule({"main": scale_by_a_number_of_the_host}), TARGET)
    program = read_host_function(lowered.host, of)
    kernels = {
        launch.kernel: Kernel(launch.kernel, launch.kernel, 0)
        for launch in launches(program.statements)
    }
    library = Library("opencl", (CodeModule("opencl-c", b""),), kernels, {"scale": program})
    shapes = [TensorShape((count,), "float32")] * 2
    (launch,) = plan_call(unpack(pack(library)), "scale", shapes, {}).launches
    (found,) = (
        each.value
        for each in launch.arguments
        if isinstance(each, ScalarUse) and each.dtype == "float32"
    )
    expected = Fraction(count) * Fraction(float(np.float32(0.1))) + Fraction(1, count) - 3
    assert found == float(expected)
