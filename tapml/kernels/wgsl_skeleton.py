"""A kernel in WGSL with the right bindings, to be filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tapml_targets.library import Parameter

THREADS: Final = 64
_ELEMENTS: Final = {"float32": "f32", "float16": "f16", "int32": "i32", "uint32": "u32"}


def write_wgsl_skeleton(entry: str, parameters: Sequence[Parameter], symbols: Sequence[str]) -> str:
    """A kernel of one invocation per element of the first output; it writes nothing yet.

    Parameters
    ----------
    entry
        Its name.
    parameters
        The operator's.
    symbols
        What it is given as 32-bit numbers; the first output's number of elements follows.
    """
    bindings = [_binding(place, parameter) for place, parameter in enumerate(parameters)]
    members = "".join(f"  {name}: i32,\n" for name in (*symbols, "elements"))
    first = next(parameter for parameter in parameters if parameter.role != "input")
    return (
        "\n".join(bindings)
        + f"\nstruct Numbers {{\n{members}}}\n"
        + f"@group(0) @binding({len(parameters)}) var<uniform> numbers : Numbers;\n\n"
        + f"@compute @workgroup_size({THREADS})\n"
        + f"fn {entry}(@builtin(global_invocation_id) at : vec3<u32>) {{\n"
        + "  let element = i32(at.x);\n"
        + "  if (element >= numbers.elements) {\n    return;\n  }\n"
        + f"  // Write {first.name}[element] here.\n}}\n"
    )


def _binding(place: int, parameter: Parameter) -> str:
    # Elements that WGSL's storage lacks lie in words of 32 bits.
    element = _ELEMENTS.get(parameter.dtype)
    access = "read" if parameter.role == "input" else "read_write"
    if element is None:
        element = "u32" if access == "read" else "atomic<u32>"
    note = "" if parameter.dtype in _ELEMENTS else f"  // {parameter.dtype}"
    return (
        f"@group(0) @binding({place}) var<storage, {access}> {parameter.name} : "
        f"array<{element}>;{note}"
    )
