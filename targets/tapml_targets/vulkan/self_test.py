"""The self-test's kernels in GLSL; what they are asked is platform-neutral and lies elsewhere.

See :mod:`tapml_targets.self_test.kernels` for what each of them has to compute. Every operand comes
from a buffer: a compiler that knew it would compute with its own arithmetic, not the device's.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.library import CodeModule, Library
from tapml_targets.limits import Limits
from tapml_targets.self_test.kernels import CORE, ROWS, SPELT, block_threads, dtype_of, library_of

_LOOPS: Final = """\
layout(local_size_x = 1) in;
layout(std430, set = 0, binding = 0) buffer Sums { int sums[]; };
layout(std430, set = 0, binding = 1) readonly buffer Steps { uint steps[]; };
layout(std430, set = 0, binding = 2) readonly buffer Sizes { int sizes[]; };
void tapml_loops() {
  uint state = 1u;
  int count = 0;
  if (gl_WorkGroupID.x == 0u) {
    for (int i = 0; i < sizes[0]; i++) {
      state = state * 1664525u + 1013904223u;
      count += int(steps[state >> 26]);
    }
  } else {
    for (int i = 0; i < sizes[1]; i++) {
      for (int j = 0; j < sizes[2]; j++) {
        state = state * 1664525u + 1013904223u;
        count += int(steps[state >> 26]);
      }
    }
  }
  sums[gl_WorkGroupID.x] = count;
}
"""
_BLOCK: Final = """\
layout(local_size_x = THREADS) in;
layout(std430, set = 0, binding = 0) buffer Found { int found[]; };
layout(std430, set = 0, binding = 1) buffer Between { int between[]; };
void tapml_block() {
  uint lane = gl_LocalInvocationID.x;
  between[lane] = int(lane) + 1;
  memoryBarrierBuffer();
  barrier();
  found[lane] = between[THREADS - 1u - lane];
}
"""
_INT64: Final = """\
layout(local_size_x = 1) in;
layout(std430, set = 0, binding = 0) buffer Found { int64_t found[]; };
layout(std430, set = 0, binding = 1) readonly buffer A { int64_t a[]; };
layout(std430, set = 0, binding = 2) readonly buffer B { int64_t b[]; };
void tapml_int64() {
  uint i = gl_WorkGroupID.x;
  uint n = gl_NumWorkGroups.x;
  int64_t x = a[i];
  int64_t y = b[i];
  int s = int(y & 63L);
  found[i] = x + y;
  found[n + i] = x * y;
  found[2u * n + i] = x << s;
  found[3u * n + i] = x >> s;
  found[4u * n + i] = int64_t(uint64_t(x) >> s);
  found[5u * n + i] = x / y;
  found[6u * n + i] = x < y ? 1L : 0L;
}
"""
# The arithmetic of a dtype T.
_FLOATS: Final = """\
layout(local_size_x = 1) in;
layout(std430, set = 0, binding = 0) buffer Found { T found[]; };
layout(std430, set = 0, binding = 1) readonly buffer A { T a[]; };
layout(std430, set = 0, binding = 2) readonly buffer B { T b[]; };
layout(std430, set = 0, binding = 3) readonly buffer C { T c[]; };
T apart(T x, T y, T z) {
  precise T product = x * y;
  precise T sum = product + z;
  return sum;
}
void tapml_floats() {
  uint i = gl_WorkGroupID.x;
  uint n = gl_NumWorkGroups.x;
  T x = a[i];
  T y = b[i];
  T z = c[i];
ROWS
}
"""
_ROWS: Final = {
    **SPELT,
    "multiply_add_apart": "apart(x, y, z)",
    "is_nan": "x != x ? T(1) : T(0)",
    "select": "y > T(0) ? x : z",
    "lesser": "x < y ? x : y",
    "minimum": "min(x, y)",
}
_CONVERT: Final = """\
layout(local_size_x = 1) in;
layout(std430, set = 0, binding = 0) buffer Found { float16_t found[]; };
layout(std430, set = 0, binding = 1) readonly buffer A { float a[]; };
void tapml_convert() { found[gl_WorkGroupID.x] = float16_t(a[gl_WorkGroupID.x]); }
"""
_TYPES: Final = {"float16": "float16_t", "float32": "float", "float64": "double"}
_HALF: Final = (
    "#extension GL_EXT_shader_16bit_storage : require\n"
    "#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require\n"
)
_WIDE: Final = "#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require\n"


def self_test_library(part: str, limits: Limits = Limits()) -> Library:
    """The Library of a part of the self-test; see :data:`tapml_targets.self_test.kernels.PARTS`.

    `limits` are the device's: a text holds its workgroup size, and the largest is tried. 64-bit
    integers are tried where the device has them.
    """
    texts = {"floats": _floats(dtype_of(part))}
    if part == CORE:
        threads = f"{block_threads(limits)}"
        texts |= {"loops": _LOOPS, "block": _BLOCK.replace("THREADS", threads)}
        if "int64" in limits.features:
            texts["int64"] = _WIDE + _INT64
    elif part == "float16":
        texts["convert"] = _HALF + _CONVERT
    modules = {
        name: CodeModule(
            "glsl", f"#version 450\n{text}void main() {{ tapml_{name}(); }}\n".encode()
        )
        for name, text in texts.items()
    }
    return library_of("vulkan", part, modules)


def _floats(dtype: str) -> str:
    lines = [
        f"  found[{number}u * n + i] = {_ROWS[row]};" for number, row in enumerate(ROWS[dtype])
    ]
    extension = _HALF if dtype == "float16" else ""
    define = f"#define T {_TYPES[dtype]}\n"
    return extension + define + _FLOATS.replace("ROWS", "\n".join(lines))
