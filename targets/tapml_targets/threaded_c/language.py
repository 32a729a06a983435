"""The language as data: what differs between two platforms is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml_targets.kernel_language import (
    CLANG_MESSAGE,
    KernelLanguage,
    ParameterSyntax,
    Skeleton,
)

_TYPES: Final = {
    "char": "int8", "signed char": "int8", "int8_t": "int8",
    "uchar": "uint8", "unsigned char": "uint8", "uint8_t": "uint8",
    "short": "int16", "int16_t": "int16",
    "ushort": "uint16", "unsigned short": "uint16", "uint16_t": "uint16",
    "int": "int32", "int32_t": "int32",
    "uint": "uint32", "unsigned": "uint32", "unsigned int": "uint32", "uint32_t": "uint32",
    "long long": "int64", "int64_t": "int64",
    "unsigned long long": "uint64", "uint64_t": "uint64",
    "half": "float16", "__half": "float16", "_Float16": "float16",
    "float": "float32", "double": "float64", "bool": "bool",
}  # fmt: skip
_ELEMENTS: Final = {
    "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short",
    "int32": "int", "uint32": "unsigned int", "int64": "long long", "uint64": "unsigned long long",
    "float16": "half", "float32": "float", "float64": "double", "bool": "bool",
    # Raw bits.
    "bfloat16": "unsigned short",
}  # fmt: skip
_SKELETON: Final = """\
${needs}extern "C" __global__ void $entry(
    $buffers,
    $numbers) {
  const long long element = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= elements) {
    return;
  }
  // One thread per element of $output; its place in it:
$places
  // Write $output[element] here.
}
"""


def threaded_c(
    dialect: str,
    extension: str,
    options: Mapping[str, str],
    needs: Mapping[str, str],
    message: str = r"(?!)",
    executed_as: str = "",
) -> KernelLanguage:
    """The language of a platform.

    Parameters
    ----------
    dialect, extension, options
        As of :class:`~tapml_targets.kernel_language.KernelLanguage`.
    needs
        Lines that a kernel of a dtype begins with.
    message
        Form of its compiler's messages, beside clang's.
    executed_as
        The dialect by which the simulator executes it, if it has no own there.
    """
    return KernelLanguage(
        dialect=dialect,
        extension=extension,
        types=_TYPES,
        entry=r"\b__global__ void (?P<name>\w+) \(",
        arguments=ParameterSyntax(
            qualifiers=frozenset({"__restrict__", "__restrict", "const", "volatile"}),
            vector=r"(?P<element>[a-z]+)[234]",
            other=r"\b(?:cudaTextureObject_t|hipTextureObject_t)\b",
        ),
        skeleton=Skeleton(
            text=_SKELETON,
            read="const $element* __restrict__ $name",
            written="$element* __restrict__ $name",
            number="const long long $name",
            elements=_ELEMENTS,
            other=("unsigned char", "unsigned char"),
            integer="int64",
            needs=needs,
        ),
        options=options,
        dropped=frozenset({"__launch_bounds__"}),
        # TVM declares every kernel twice.
        noise=r'^extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?\w+\([^;{]*\);\n',
        messages=(message, CLANG_MESSAGE),
        barrier=r"\b__syncthreads\b",
        exchange=r"\b__shfl\w*",
        executed_as=executed_as,
    )
