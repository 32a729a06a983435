"""OpenCL C, as hand-written kernels use it.

Macros and typedefs are not expanded: parameters that use them are left to the driver's compiler.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.kernel_language import (
    CLANG_MESSAGE,
    KernelLanguage,
    ParameterSyntax,
    Skeleton,
)

_TYPES: Final = {
    "char": "int8",
    "uchar": "uint8",
    "unsigned char": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "unsigned short": "uint16",
    "int": "int32",
    "uint": "uint32",
    "unsigned int": "uint32",
    "unsigned": "uint32",
    "long": "int64",
    "ulong": "uint64",
    "unsigned long": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bool": "bool",
}
# Dtypes without a C type are raw bits.
_ELEMENTS: Final = {
    **{dtype: spelled for spelled, dtype in _TYPES.items() if " " not in spelled},
    "uint32": "uint",
    "bool": "uchar",
    "bfloat16": "ushort",
}
_QUALIFIERS: Final = (
    "__global global __constant constant __local local __private private const volatile restrict "
    "__restrict __restrict__ __read_only read_only __write_only write_only signed"
)
_SKELETON: Final = """\
${needs}__kernel void $entry(
    $buffers,
    $numbers) {
  const long element = get_global_id(0);
  if (element >= elements) {
    return;
  }
  // One thread per element of $output; its place in it:
$places
  // Write $output[element] here.
}
"""
# A Library comes over the wire, so its text never reaches the compiler's command line.
_OPTIONS: Final = {
    "exact-division": (
        "-cl-fp32-correctly-rounded-divide-sqrt",
        "float32 division and square root are rounded correctly, where offered",
    ),
    "fast-math": ("-cl-fast-relaxed-math", "the driver's relaxed mathematics"),
    "no-optimiser": ("-cl-opt-disable", "the driver's compiler does not optimise"),
}
BUILD_OPTIONS: Final = {name: flag for name, (flag, _) in _OPTIONS.items()}
"""The compiler's flag for each option."""

LANGUAGE: Final = KernelLanguage(
    dialect="opencl-c",
    extension="cl",
    types=_TYPES,
    entry=r"\b(?:__kernel|kernel) (?:\w+ )*?void (?P<name>\w+) \(",
    arguments=ParameterSyntax(
        qualifiers=frozenset(_QUALIFIERS.split()),
        constant=r"^[^*]*\bconst\b|\b(?:__)?constant\b",
        shared=r"\b(?:__)?local\b",
        other=r"\b(?:image\w*|sampler\w*|event_t|queue_t|pipe)\b",
        vector=r"(?P<element>[a-z]+)(?:2|3|4|8|16)",
    ),
    skeleton=Skeleton(
        text=_SKELETON,
        read="__global const $element* restrict $name",
        written="__global $element* restrict $name",
        number="const long $name",
        elements=_ELEMENTS,
        other=("uchar", "uchar"),
        integer="int64",
        needs={
            "float16": "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n",
            "float64": "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n",
        },
    ),
    options={name: purpose for name, (_, purpose) in _OPTIONS.items()},
    dropped=frozenset({"__attribute__"}),
    # TVM declares every kernel twice.
    noise=r"^(?:// Function: .*|__kernel void \w+\([^;{]*\);)\n",
    messages=(
        CLANG_MESSAGE,
        # PoCL: "error: /tmp/x.cl:3:5: text".
        r"[ \t]*(?P<kind>(?:fatal )?error|warning|note): \S*?:(?P<line>\d+):(?P<column>\d+): "
        r"(?P<text>.*)",
    ),
    barrier=r"\bbarrier\b",
    exchange=r"\bsub_group_(?!barrier)\w+",
)
