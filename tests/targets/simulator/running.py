"""Kernels in the three languages, and how a test runs one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from tapml_targets.driver import BoundLaunch, BufferUse, DeviceDescription, ScalarUse
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.limits import Limits
from tapml_targets.simulator import toolchain
from tapml_targets.simulator.description import simulated_device
from tapml_targets.simulator.driver import open_simulated
from tapml_targets.simulator.launching import Schedule
from tapml_targets.simulator.simulated_driver import SimulatedDriver

Array = NDArray[Any]
SCHEDULES: Final = ("ascending", "descending", "random:1")
DIALECTS: Final = ("cuda-c", "hip-c", "metal")


def require_simulator() -> None:
    """Skip the test where kernels cannot be simulated; fail it where devices are required."""
    if reason := toolchain.remedy():
        if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


def described() -> DeviceDescription:
    return simulated_device("nowhere", 0, "a test", Limits(max_threads_per_block=1024))


def opened(dialect: str, *, width: int = 32, schedule: str = "ascending") -> SimulatedDriver:
    require_simulator()
    return open_simulated(described(), dialect, width, schedule=Schedule.read(schedule))


def run(
    text: str,
    arrays: Sequence[Array],
    numbers: Sequence[ScalarUse] = (),
    *,
    dialect: str = "cuda-c",
    grid: int = 1,
    block: int = 64,
    width: int = 32,
    schedule: str = "ascending",
    dynamic: int = 0,
) -> list[Array]:
    """The arrays after one launch of the kernel `f` of a text on them."""
    driver = opened(dialect, width=width, schedule=schedule)
    kernel = driver.load(CodeModule(dialect, text.encode()), [Kernel("f", "f", 0)])["f"]
    buffers = [driver.allocate(array.nbytes) for array in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        driver.write(buffer, 0, memoryview(array.tobytes()))
    uses = [BufferUse(b, 0, a.nbytes) for b, a in zip(buffers, arrays, strict=True)]
    launch = BoundLaunch(kernel, (*uses, *numbers), (grid, 1, 1), (block, 1, 1), dynamic)
    driver.launch_all(driver.bind([launch]))
    found = [
        np.frombuffer(driver.read(buffer, 0, array.nbytes), array.dtype).reshape(array.shape)
        for buffer, array in zip(buffers, arrays, strict=True)
    ]
    driver.close()
    return found


# A sum of 64 numbers: across each wave by shuffles, then through shared memory.
SUM: Final = {
    "cuda-c": """\
extern "C" __global__ void __launch_bounds__(64) f(float* o, const float* __restrict__ a, int n) {
  __shared__ alignas(64) float parts[64];
  float value = (int)threadIdx.x < n ? a[blockIdx.x * 64 + threadIdx.x] : 0.0f;
  for (int by = 16; by > 0; by >>= 1) value += __shfl_down_sync(0xffffffffu, value, by, 32);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) o[blockIdx.x] = parts[0] + parts[1];
}
""",
    "hip-c": """\
extern "C" __global__ void __launch_bounds__(64) f(float* o, const float* __restrict__ a, int n) {
  __shared__ __align__(64) float parts[64];
  float value = (int)threadIdx.x < n ? a[blockIdx.x * 64 + threadIdx.x] : 0.0f;
  for (int by = 16; by > 0; by >>= 1) value += __shfl_down(value, by, 32);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) o[blockIdx.x] = parts[0] + parts[1];
}
""",
    "metal": """\
#include <metal_stdlib>
using namespace metal;
struct f_args_t { int n; };
kernel void f(device float* o [[ buffer(0) ]], device const float* a [[ buffer(1) ]],
              constant f_args_t& arg [[ buffer(2) ]],
              uint blockIdx [[threadgroup_position_in_grid]],
              uint threadIdx [[thread_position_in_threadgroup]]) {
  threadgroup float parts[64];
  float value = (int)threadIdx < arg.n ? a[blockIdx * 64 + threadIdx] : 0.0f;
  for (int by = 16; by > 0; by >>= 1) value += simd_shuffle_down(value, by);
  if (threadIdx % 32 == 0) { parts[threadIdx / 32] = value; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (threadIdx == 0) { o[blockIdx] = parts[0] + parts[1]; }
}
""",
}
