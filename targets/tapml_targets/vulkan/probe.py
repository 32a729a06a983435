"""The kernel that shows whether a Vulkan device works, and how fast it is."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from tapml_targets.library import CodeModule, Library
from tapml_targets.probe_kernel import product_library, spelling

_TYPES: Final = {
    "float16": (
        "float16_t",
        "#extension GL_EXT_shader_16bit_storage : require\n"
        "#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require\n",
    ),
    "float32": ("float", ""),
    "float64": ("double", ""),
}
_SOURCE: Final = """\
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) buffer Y { T y[]; };
layout(std430, set = 0, binding = 1) readonly buffer A { T a[]; };
layout(std430, set = 0, binding = 2) readonly buffer X { T x[]; };
layout(push_constant) uniform Arguments { int columns; } arguments;
shared T sums[64];
void tapml_probe() {
  int columns = arguments.columns;
  int row = int(gl_WorkGroupID.x);
  int thread = int(gl_LocalInvocationID.x);
  T sum = T(0);
  T part[8];
  for (int outer = 0; outer < columns / 512; outer++) {
    int first = outer * 512 + thread * 8;
    for (int i = 0; i < 8; i++) part[i] = a[row * columns + first + i];
    for (int i = 0; i < 8; i++) sum = sum + x[first + i] * part[i];
  }
  sums[thread] = sum;
  barrier();
  for (int width = 32; width > 0; width = width / 2) {
    if (thread < width) sums[thread] = sums[thread] + sums[thread + width];
    barrier();
  }
  if (thread == 0) y[row] = sums[0];
}
void main() { tapml_probe(); }
"""


def probe_library(dtype: str) -> Library:
    """The probe's Library; see :mod:`tapml_targets.probe_kernel`.

    Raises
    ------
    InputError
        If kernels cannot compute in `dtype`.
    """
    spelling(_TYPES, dtype, "GLSL")
    # What glslang made of the text, so that a device is tried where there is no glslang.
    code = files("tapml_targets.vulkan").joinpath("kernels", f"probe_{dtype}.spv").read_bytes()
    return product_library("vulkan", CodeModule("spirv", code, kind="portable"), dtype)


def probe_text(dtype: str) -> str:
    """The probe in GLSL."""
    kind, extensions = spelling(_TYPES, dtype, "GLSL")
    return f"#version 450\n{extensions}#define T {kind}\n{_SOURCE}"
