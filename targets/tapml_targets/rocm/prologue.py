"""What kernels in HIP C begin with: no header, for a device's compiler may have none beside it."""

from __future__ import annotations

from typing import Final

from tapml_targets.threaded_c.prologues import Prologue

# hiprtc has types of these names, some of another spelling.
_INTEGERS: Final = """\
typedef __INT8_TYPE__ tapml_int8_t;
#define int8_t tapml_int8_t
typedef __INT16_TYPE__ tapml_int16_t;
#define int16_t tapml_int16_t
typedef __INT32_TYPE__ tapml_int32_t;
#define int32_t tapml_int32_t
typedef __INT64_TYPE__ tapml_int64_t;
#define int64_t tapml_int64_t
typedef __UINT8_TYPE__ tapml_uint8_t;
#define uint8_t tapml_uint8_t
typedef __UINT16_TYPE__ tapml_uint16_t;
#define uint16_t tapml_uint16_t
typedef __UINT32_TYPE__ tapml_uint32_t;
#define uint32_t tapml_uint32_t
typedef __UINT64_TYPE__ tapml_uint64_t;
#define uint64_t tapml_uint64_t
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
