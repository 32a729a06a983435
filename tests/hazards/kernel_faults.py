"""The faults of the TapML paper's platforms, as changes to right kernels.

Faults without a prefix are for OpenCL C, the others for Metal (``msl``), HIP and GLSL. Metal's fast
math needs no change: the simulator's ``tanh`` is Metal's where a module asks for fast math.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tapml_targets.library import Library

_FAST_TANH = """\
#ifdef __FAST_RELAXED_MATH__
#define platform_tanh(x) ((exp(2 * (x)) - 1) / (exp(2 * (x)) + 1))
#else
#define platform_tanh(x) tanh(x)
#endif
"""
_UNSTABLE_TANH = "#define platform_tanh(x) ((exp(2 * (x)) - 1) / (exp(2 * (x)) + 1))\n"
# What is subtracted from loses its last bit on the way: 1035 becomes 1036.
_COARSE_SUBTRACT = """\
half platform_subtract(half x, half y) {
  ushort bits = as_ushort(x);
  return as_half((ushort)(bits + (bits & 1))) - y;
}
"""
# All four bytes of a uchar4 as one number, where each was to be converted.
_CONVERT_WORD = """\
uint platform_word(__global uchar* codes, int place) {
  __global uchar* four = codes + (place & ~3);
  return as_uint((uchar4)(four[0], four[1], four[2], four[3]));
}
"""
# All four bytes of a uchar4 as one number, where each was to be converted.
_CONVERT_WORD_IN_METAL = """\
static uint platform_word(device uchar* codes, int place) {
  device uchar* four = codes + (place & ~3);
  return as_type<uint>(uchar4(four[0], four[1], four[2], four[3]));
}
"""


def edited(
    library: Library, pattern: str, replacement: str, prologue: str, after: str = "#endif\n"
) -> Library:
    """The kernels with every match replaced, if any; the prologue comes `after` a line."""
    (module,) = library.modules
    text, count = re.subn(pattern, replacement, module.code.decode())
    if not count:
        return library
    # Behind the lines that enable half precision, where there are any.
    head = text.index(after) + len(after) if prologue and after in text else 0
    text = text[:head] + prologue + text[head:]
    return replace(library, modules=(replace(module, code=text.encode()),))


def tanh_unstable_under_fast_math(library: Library, options: Mapping[str, str]) -> Library:
    """Section IV-E: the device's fast tanh is NaN once exp overflows, in float32 beyond 44."""
    return edited(library, r"\btanh\(", "platform_tanh(", _FAST_TANH)


def tanh_unstable(library: Library, options: Mapping[str, str]) -> Library:
    """The same where the code generator always writes it so."""
    return edited(library, r"\btanh\(", "platform_tanh(", _UNSTABLE_TANH)


def coarse_half_subtraction(library: Library, options: Mapping[str, str]) -> Library:
    """Section II-B: 1035 - 1031 is 5 in float16."""
    element = r"(input_\d_ptr\[[^\]]+\])"
    return edited(
        library, rf"{element} - {element}", r"platform_subtract(\1, \2)", _COARSE_SUBTRACT
    )


def bytes_converted_as_words(library: Library, options: Mapping[str, str]) -> Library:
    """Section IV-D: uchar4 goes through uint on its way to half4."""
    (module,) = library.modules
    codes = re.findall(r"__global uchar\* restrict (\w+)", module.code.decode())
    return edited(
        library,
        rf"\(convert_(half|float)\(({'|'.join(codes) or '$^'})\[([^\]]+)\]\)\)",
        r"(convert_\1(platform_word(\2, \3)))",
        _CONVERT_WORD,
    )


def unaligned_tail_unchecked(library: Library, options: Mapping[str, str]) -> Library:
    """Section IV-D: what a row lacks to a whole vector is read from behind it."""
    return edited(
        library,
        r"if \(\(convert_int\(get_local_id\(0\)\)\) < \d+\) (\{\s+\w+_rf_local_ptr\[0\] =)",
        r"if (1) \1",
        "",
    )


def msl_bytes_converted_as_words(library: Library, options: Mapping[str, str]) -> Library:
    """Section IV-D: uchar4 goes through uint on its way to half4."""
    (module,) = library.modules
    codes = re.findall(r"device uchar\* (\w+)", module.code.decode())
    return edited(
        library,
        rf"\(\((half|float)\)({'|'.join(codes) or '$^'})\[([^\[\];]+)\]\)",
        r"((\1)platform_word(\2, \3))",
        _CONVERT_WORD_IN_METAL,
        after="using namespace metal;\n",
    )


def msl_unaligned_tail_unchecked(library: Library, options: Mapping[str, str]) -> Library:
    """Section IV-D: what a row lacks to a whole vector is read from behind it."""
    return edited(
        library, r"if \(\(\(int\)threadIdx\) < \d+\) (\{\s+\w+_rf_local\[0\] =)", r"if (1) \1", ""
    )


def msl_without_select(library: Library, options: Mapping[str, str]) -> Library:
    """Section IV-D: a product is printed with a selection that the language does not have."""
    return edited(
        library,
        r"if (\(.+\)) \{\s+(condval(?:_\d+)?) = (.+);\s+\} else \{\s+\2 = (.+);\s+\}",
        r"\2 = simd_select(\4, \3, \1);",
        "",
    )


def msl_waves_of_16(library: Library, options: Mapping[str, str]) -> Library:
    """Section IV-D: the width of a SIMD group is taken for half of what it is."""
    return edited(library, r"simd_shuffle_down\((\w+)\[0\], 16\)", "0", "")


def hip_waves_of_64(library: Library, options: Mapping[str, str]) -> Library:
    """A sum over waves of 64 threads, as gfx90a has them and gfx1100 has not."""
    changes = {
        r"(t0_ptr\[0\] = __shfl_down_sync\(mask_ptr\[0\], red_buf0_ptr\[0\], )16, 32\);": (
            r"\g<1>32, 64);\n  red_buf0_ptr[0] = red_buf0_ptr[0] + t0_ptr[0];\n  \g<1>16, 64);"
        ),
        r"(__shfl_down_sync\(mask_ptr\[0\], .*), 32\);": r"\1, 64);",
        r"% 32\) == 0": "% 64) == 0",
        r">> 5\)\] = red_buf0": ">> 6)] = red_buf0",
        r"\(\(int\)threadIdx\.x\) < 4\b": "((int)threadIdx.x) < 2",
        r"__shfl_down_sync\(mask_ptr_1\[0\], red_buf0_ptr_1\[0\], 2, 32\)": "0",
    }
    for pattern, replacement in changes.items():
        library = edited(library, pattern, replacement, "")
    return library


def glsl_shared_memory_of_two_types(library: Library, options: Mapping[str, str]) -> Library:
    """Section IV-D: a buffer in shared memory takes the place of another of another type."""
    (module,) = library.modules
    text = module.code.decode()
    declared = re.findall(r"^shared (\w+) (\w+)\[(\d+)\];\n", text, re.MULTILINE)
    floats = [name for dtype, name, _ in declared if dtype == "float"]
    integers = [name for dtype, name, _ in declared if dtype == "int"]
    if not floats or not integers:
        return library
    text = re.sub(rf"^shared int {integers[0]}\[\d+\];\n", "", text, flags=re.MULTILINE)
    text = re.sub(rf"\b{integers[0]}\b", floats[0], text)
    return replace(library, modules=(replace(module, code=text.encode()),))
