"""Metal's shading language, as the modules of this platform are written.

See :mod:`tapml_targets.metal` for how a kernel takes its arguments.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.kernel_language import CLANG_MESSAGE, KernelLanguage, ParameterSyntax, Skeleton

DIALECT: Final = "msl"
TYPES: Final = {
    "bool": "bool", "char": "int8", "uchar": "uint8", "int8_t": "int8", "uint8_t": "uint8",
    "short": "int16", "ushort": "uint16", "int16_t": "int16", "uint16_t": "uint16",
    "int": "int32", "uint": "uint32", "int32_t": "int32", "uint32_t": "uint32",
    "unsigned int": "uint32", "long": "int64", "ulong": "uint64", "int64_t": "int64",
    "uint64_t": "uint64", "half": "float16", "float": "float32",
}  # fmt: skip
_SPELLED: Final = {
    "bool": "bool", "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort",
    "int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong", "float16": "half",
    "float32": "float",
    # Its elements are raw bits: TVM's kernels compute on them, and older GPUs have no bfloat.
    "bfloat16": "ushort",
}  # fmt: skip
FAST_MATH: Final = "fast-math"
_SKELETON: Final = """\
#include <metal_stdlib>
using namespace metal;

struct ${entry}_args_t {
  $numbers
};

kernel void $entry(
    $buffers,
    constant ${entry}_args_t& numbers [[buffer($count)]],
    uint thread_index [[thread_position_in_grid]]) {
  const long element = thread_index;
  if (element >= numbers.elements) {
    return;
  }
  // One thread per element of $output; its place in it:
$places
  // Write $output[element] here.
}
"""

LANGUAGE: Final = KernelLanguage(
    dialect=DIALECT,
    extension="metal",
    types=TYPES,
    entry=r"\b(?:kernel|\[ \[ kernel \] \]) void (?P<name>\w+) \(",
    arguments=ParameterSyntax(
        qualifiers=frozenset({"device", "constant", "threadgroup", "const", "volatile"}),
        constant=r"^[^*]*\bconst\b|\bconstant\b",
        shared=r"\bthreadgroup\b",
        other=r"\b(?:texture\w*|depth\w*|sampler|array|tensor\w*)\b",
        built_in=r"\[ \[ (?:thread\w*|threads_\w*|simd\w*|grid\w*|quad\w*|dispatch\w*) \] \]",
        vector=r"(?:packed_)?(?P<element>[a-z]+)[234]",
    ),
    skeleton=Skeleton(
        text=_SKELETON,
        read="const device $element* $name [[buffer($place)]]",
        written="device $element* $name [[buffer($place)]]",
        number="long $name;",
        elements=_SPELLED,
        other=("uchar", "uchar"),
        integer="int64",
        between_numbers="\n  ",
    ),
    options={FAST_MATH: "Metal's compiler trades accuracy for speed, as it does by default"},
    messages=(
        CLANG_MESSAGE,
        # Metal's compiler names its input so: "program_source:12:5: error: text".
        r"[ \t]*program_source:(?P<line>\d+):(?P<column>\d+): "
        r"(?P<kind>(?:fatal )?error|warning|note): (?P<text>.*)",
    ),
    barrier=r"\bthreadgroup_barrier\b",
    exchange=r"\b(?:simd|quad)_\w+",
)
