"""What kernels in CUDA C begin with. NVRTC knows no ``<cstdint>``; other compilers have it."""

from __future__ import annotations

from typing import Final

from tapml_targets.threaded_c.prologues import Prologue

_INTEGERS: Final = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
#define uchar unsigned char
#define ushort unsigned short
#define uint unsigned int
"""

PROLOGUE: Final = Prologue(
    always=_INTEGERS,
    half="#include <cuda_fp16.h>\n",
    bfloat="#include <cuda_bf16.h>\n"
    "__device__ inline nv_bfloat162 make_nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) "
    "{ return nv_bfloat162(x, y); }\n",
    tensor_cores="#include <mma.h>\n",
)
