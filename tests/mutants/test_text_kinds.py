"""Barriers, indices and waves are found in the text of any kernel language."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from scripts.mutants.text_kinds import BARRIER, INDEX, WAVE, text_edits
from tapml_targets.platforms import kernel_languages

METAL = """\
#include <metal_stdlib>
using namespace metal;
kernel void sum_kernel(  device float* x [[ buffer(0) ]],
  device float* out [[ buffer(1) ]],
  uint threadIdx [[thread_position_in_threadgroup]]
) {
  thread float red_buf0[1] = {0};
  threadgroup float shared_0[32];
  red_buf0[0] = x[(((int)threadIdx) * 2)];
  red_buf0[0] = (red_buf0[0] + simd_shuffle_down(red_buf0[0], 8));
  t0[0] = simd_shuffle_down(red_buf0[0], 16);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[0] = red_buf0[0];
}
"""
HIP = """\
#define helper(a, i) a[i]
extern "C" __global__ void __launch_bounds__(32) sum_kernel(float* __restrict__ x);
extern "C" __global__ void __launch_bounds__(32) sum_kernel(float* __restrict__ x) {
  alignas(64) __shared__ float staging_ptr[2];
  t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_ptr[0], 16, 32);
  __syncthreads();
  x[((int)threadIdx.x)] = staging_ptr[x_of[1]];
}
"""
GLSL = """\
layout(std430, set = 0, binding = 0) buffer Tensor0 { float x_0[]; };
shared float red_buf0_0[32];
void sum_kernel() {
  barrier();
  x_0[int(gl_LocalInvocationID.x)] = red_buf0_0[0];
}
void main() { sum_kernel(); }
"""


def changed(text: str, dialect: str) -> Mapping[str, list[str]]:
    """What is replaced, by kind."""
    language = kernel_languages()[
        next(name for name, each in kernel_languages().items() if each.dialect == dialect)
    ]
    found = text_edits(text, ["sum_kernel"], language)
    return {kind: [text[e.start : e.end] for e in edits] for kind, edits in found.items()}


def test_metal() -> None:
    found = changed(METAL, "msl")
    assert found[BARRIER] == ["threadgroup_barrier(mem_flags::mem_threadgroup);"]
    assert found[WAVE] == ["simd_shuffle_down(red_buf0[0], 16)"]
    # Declarations and attributes are no accesses; each access is shifted both ways.
    assert len(found[INDEX]) == 2 * 9
    assert "(((int)threadIdx) * 2)" in found[INDEX]
    assert not {"1", "32"} & set(found[INDEX])


def test_hip_and_the_index_of_an_index() -> None:
    found = changed(HIP, "hip-c")
    assert found[BARRIER] == ["__syncthreads();"]
    assert found[WAVE] == ["__shfl_down_sync(mask_ptr[0], red_ptr[0], 16, 32)"]
    assert {"x_of[1]", "1", "((int)threadIdx.x)"} <= set(found[INDEX])
    assert "i" not in found[INDEX], "a macro is no kernel"


def test_glsl_has_no_waves() -> None:
    found = changed(GLSL, "glsl")
    assert found[BARRIER] == ["barrier();"]
    assert found[WAVE] == []
    assert found[INDEX][::2] == ["int(gl_LocalInvocationID.x)", "0"]


@pytest.mark.parametrize(
    ("dialect", "widest", "narrower"),
    [
        ("glsl", "subgroupShuffleDown(a_0[0], uint(4))", "subgroupShuffleDown(a_0[0], uint(2))"),
        ("wgsl", "subgroupShuffleDown(red[0i], u32(16i))", "subgroupShuffleDown(red[0i], u32(8i))"),
        ("cuda-c", "__shfl_down_sync(mask[0], red[0], 16, 32)",
         "__shfl_sync(mask[0], red[0], (((int)threadIdx.y) * 32), 32)"),
    ],
)  # fmt: skip
def test_the_half_of_a_wave_is_the_widest_step_whatever_the_width(
    dialect: str, widest: str, narrower: str
) -> None:
    text = f"sum_kernel(x) {{\n  t = {widest};\n  t = {narrower};\n}}\n"
    assert changed(text, dialect)[WAVE] == [widest]
