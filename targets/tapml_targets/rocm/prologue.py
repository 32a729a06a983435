"""What kernels in HIP C begin with: no header, for a device's compiler may have none beside it."""

from __future__ import annotations

from typing import Final

from tapml_targets.threaded_c.prologues import Prologue

_INTEGERS: Final = """\
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
#define uchar unsigned char
#define ushort unsigned short
#define uint unsigned int
#define __shfl_sync(mask, value, lane, width) __shfl(value, lane, width)
#define __shfl_down_sync(mask, value, by, width) __shfl_down(value, by, width)
#define __shfl_up_sync(mask, value, by, width) __shfl_up(value, by, width)
#define __shfl_xor_sync(mask, value, by, width) __shfl_xor(value, by, width)
#define __activemask() 0xffffffffu
"""
_FUNCTIONS: Final = (
    ("hexp", "expf"), ("hexp2", "exp2f"), ("hlog", "logf"), ("hlog2", "log2f"),
    ("hsin", "sinf"), ("hcos", "cosf"), ("hsqrt", "sqrtf"), ("hrsqrt", "rsqrtf"),
    ("hfloor", "floorf"), ("hceil", "ceilf"), ("htrunc", "truncf"), ("hrint", "rintf"),
    ("htanh", "tanhf"),
)  # fmt: skip
# Half precision is the compiler's own type; its functions are those of float, rounded.
_HALF: Final = "#define half _Float16\n#define __float2half_rn(x) ((_Float16)(x))\n" + "".join(
    f"#define {name}(x) ((_Float16){function}((float)(x)))\n" for name, function in _FUNCTIONS
)
_BFLOAT: Final = "#define nv_bfloat16 __bf16\n#define __float2bfloat16_rn(x) ((__bf16)(x))\n"

PROLOGUE: Final = Prologue(always=_INTEGERS, half=_HALF, bfloat=_BFLOAT)
