"""A kernel in OpenCL C with the right signature, to be filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tapml_targets.library import Parameter

# What a pointer to a dtype's elements is declared as; types without a name of their own are bits.
_ELEMENTS: Final = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "int8": "char",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "uint8": "uchar",
    "uint16": "ushort",
    "uint32": "uint",
    "uint64": "ulong",
    "bool": "uchar",
    "bfloat16": "ushort",
}
_EXTENSIONS: Final = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}


def write_opencl_skeleton(
    entry: str, parameters: Sequence[Parameter], symbols: Sequence[str]
) -> str:
    """A kernel of one thread per element of the first output; it writes nothing yet.

    Parameters
    ----------
    entry
        Its name.
    parameters
        The operator's.
    symbols
        What it is given as 64-bit numbers; the first output's number of elements follows.
    """
    dtypes = {parameter.dtype for parameter in parameters}
    pragmas = [
        f"#pragma OPENCL EXTENSION {extension} : enable\n"
        for dtype, extension in _EXTENSIONS.items()
        if dtype in dtypes
    ]
    arguments = [
        *map(_pointer, parameters),
        *(f"const long {symbol}" for symbol in symbols),
        "const long elements",
    ]
    first = next(parameter for parameter in parameters if parameter.role != "input")
    indices, rest = [], "element"
    for axis in range(len(first.shape) - 1, -1, -1):
        extent = _c(first.shape[axis], symbols)
        if axis == 0 or extent is None:
            indices.append(f"  //   i{axis} = {rest}")
            break
        indices.append(f"  //   i{axis} = {rest} % {extent}")
        rest = f"{rest} / {extent}" if rest == "element" else f"({rest}) / {extent}"
    joined = ",\n    ".join(arguments)
    index_lines = "\n".join(indices)
    return (
        "".join(pragmas)
        + f"__kernel void {entry}(\n    {joined}) {{\n"
        + "  const long element = get_global_id(0);\n"
        + "  if (element >= elements) {\n    return;\n  }\n"
        + f"  // One thread per element of {first.name}; its place in it:\n{index_lines}\n"
        + f"  // Write {first.name}[element] here.\n}}\n"
    )


def _pointer(parameter: Parameter) -> str:
    element = _ELEMENTS.get(parameter.dtype, "uchar")
    constant = "const " if parameter.role == "input" else ""
    return f"__global {constant}{element}* restrict {parameter.name}"


def _c(extent: object, symbols: Sequence[str]) -> str | None:
    """An extent in C; None for one that is computed."""
    if isinstance(extent, int) or extent in symbols:
        return str(extent)
    return None
