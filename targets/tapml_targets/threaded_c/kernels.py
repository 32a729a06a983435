"""The kernels by which a device is tried, measured and tested, in C with threads.

See :mod:`tapml_targets.probe_kernel`, :mod:`tapml_targets.self_test.kernels` and
:mod:`tapml_targets.conformance_kernels` for what each has to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tapml_targets.conformance_kernels import KernelText
from tapml_targets.library import CodeModule, Library
from tapml_targets.probe_kernel import THREADS, product_library, spelling
from tapml_targets.self_test.kernels import CORE, ROWS, SPELT, dtype_of, library_of

_TYPES: Final = {"float16": "half", "float32": "float", "float64": "double"}
_PROBE: Final = """\
extern "C" __global__ void tapml_probe(T* __restrict__ y, const T* __restrict__ a,
                                       const T* __restrict__ x, int columns) {
  const int row = blockIdx.x, thread = threadIdx.x;
  T sum = T(0.0f);
  T part[8];
  __shared__ T sums[THREADS];
  for (int outer = 0; outer < columns / (THREADS * 8); ++outer) {
    const int first = outer * THREADS * 8 + thread * 8;
    for (int i = 0; i < 8; ++i) part[i] = a[row * columns + first + i];
    for (int i = 0; i < 8; ++i) sum = sum + x[first + i] * part[i];
  }
  sums[thread] = sum;
  __syncthreads();
  for (int width = THREADS / 2; width > 0; width /= 2) {
    if (thread < width) sums[thread] = sums[thread] + sums[thread + width];
    __syncthreads();
  }
  if (thread == 0) y[row] = sums[0];
}
"""
_INTEGERS: Final = """\
extern "C" __global__ void tapml_loops(int* __restrict__ out, const unsigned* __restrict__ steps,
                                       const int* __restrict__ sizes) {
  unsigned state = 1u;
  int count = 0;
  if (blockIdx.x == 0) {
    for (int i = 0; i < sizes[0]; ++i) {
      state = state * 1664525u + 1013904223u;
      count += (int)steps[state >> 26];
    }
  } else {
    for (int i = 0; i < sizes[1]; ++i)
      for (int j = 0; j < sizes[2]; ++j) {
        state = state * 1664525u + 1013904223u;
        count += (int)steps[state >> 26];
      }
  }
  out[blockIdx.x] = count;
}

extern "C" __global__ void tapml_block(int* __restrict__ out, int* shared) {
  const int i = threadIdx.x, last = (int)blockDim.x - 1;
  shared[i] = i + 1;
  __threadfence_block();
  __syncthreads();
  out[i] = shared[last - i];
}

extern "C" __global__ void tapml_int64(long long* __restrict__ out,
                                       const long long* __restrict__ a,
                                       const long long* __restrict__ b) {
  const int i = blockIdx.x, n = gridDim.x;
  const long long x = a[i], y = b[i];
  const int s = (int)(y & 63);
  out[i] = (long long)((unsigned long long)x + (unsigned long long)y);
  out[n + i] = (long long)((unsigned long long)x * (unsigned long long)y);
  out[2 * n + i] = (long long)((unsigned long long)x << s);
  out[3 * n + i] = x >> s;
  out[4 * n + i] = (long long)((unsigned long long)x >> s);
  out[5 * n + i] = x / y;
  out[6 * n + i] = x < y ? 1 : 0;
}
"""
# The arithmetic of a dtype T.
_FLOATS: Final = """\
extern "C" __global__ void tapml_floats(T* __restrict__ out, const T* __restrict__ a,
                                        const T* __restrict__ b, const T* __restrict__ c) {
  const int i = blockIdx.x, n = gridDim.x;
  const T x = a[i], y = b[i], z = c[i];
ROWS
}
"""
_CONVERT: Final = """\
extern "C" __global__ void tapml_convert(half* __restrict__ out, const float* __restrict__ a) {
  out[blockIdx.x] = (half)a[blockIdx.x];
}
"""
_SHARED_ROWS: Final = {
    **SPELT,
    "is_nan": "x != x ? T(1.0f) : T(0.0f)",
    "select": "y > T(0.0f) ? x : z",
    "lesser": "x < y ? x : y",
    "minimum": "fmin(x, y)",
}
# A volatile product is rounded before it is added to.
_APART: Final = """\
__device__ inline T apart(T x, T y, T z) {
  volatile T product = x * y;
  return T(product) + z;
}
"""
# A product of two is exact in float32, and a sum of two rounded twice is rounded as once.
_APART_SMALL: Final = """\
__device__ inline T apart(T x, T y, T z) {
  return (T)((float)(T)((float)x * (float)y) + (float)z);
}
"""
_CONFORMANCE_TYPES: Final = {"float32": "float", "uint32": "unsigned", "int32": "int"}
BROKEN: Final = "undeclared_name"


def probe(platform: str, dialect: str, dtype: str, prologue: str) -> Library:
    """The probe's Library.

    `prologue` is what a text of `dtype` begins with.

    Raises
    ------
    InputError
        If kernels cannot compute in `dtype`.
    """
    defined = f"#define T {spelling(_TYPES, dtype, 'C')}\n#define THREADS {THREADS}\n"
    text = prologue + defined + _PROBE
    return product_library(platform, CodeModule(dialect, text.encode()), dtype)


def self_test(platform: str, dialect: str, part: str, prologue: str) -> Library:
    """The Library of a part of the self-test.

    `prologue` is what a text of the part's dtype begins with.
    """
    dtype = dtype_of(part)
    rows = {**_SHARED_ROWS, "multiply_add_apart": "apart(x, y, z)"}
    if dtype == "float16":
        rows |= {
            "square_root": "hsqrt(x)", "exp": "hexp(x)", "log": "hlog(x)", "tanh": "htanh(x)",
            "fused": "__hfma(x, y, z)", "minimum": "min(x, y)",
        }  # fmt: skip
    lines = [f"  out[{number} * n + i] = {rows[row]};" for number, row in enumerate(ROWS[dtype])]
    apart = _APART
    if dtype == "float16":
        apart = _APART_SMALL
    text = f"{prologue}#define T {_TYPES[dtype]}\n{apart}" + _FLOATS.replace(
        "ROWS", "\n".join(lines)
    )
    text += {CORE: _INTEGERS, "float16": _CONVERT}.get(part, "")
    return library_of(platform, part, CodeModule(dialect, text.encode()))


def conformance(dialect: str, kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
    """See :meth:`tapml_targets.conformance_kernels.KernelTable.modules`."""
    return (CodeModule(dialect, "\n".join(map(_text, kernels)).encode()),)


def broken(module: CodeModule) -> CodeModule:
    """See :meth:`tapml_targets.conformance_kernels.KernelTable.broken`."""
    more = b'extern "C" __global__ void more() { undeclared_name = 1; }\n'
    return replace(module, code=module.code + more)


def _text(kernel: KernelText) -> str:
    element = _CONFORMANCE_TYPES[kernel.dtype]
    parameters = [
        f"{element}* o",
        *(f"const {element}* {name}" for name in kernel.reads),
        *(f"{_CONFORMANCE_TYPES[dtype]} {name}" for name, dtype in kernel.all_scalars.items()),
    ]
    body = kernel.body.replace("VAR", element).replace("ELEMENT", f"({element})")
    return f"""\
extern "C" __global__ void {kernel.name}({", ".join(parameters)}) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {{ {body} }}
}}
"""
