"""Kernels in GLSL, in the form that Libraries hold: a compute shader each, folded grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tapml_targets.conformance_kernels import THREADS, KernelText, misspelt
from tapml_targets.library import CodeModule

POINTERS: Final = True
BROKEN: Final = "undeclared_name"
broken = misspelt
_TYPES: Final = {"float32": "float", "uint32": "uint", "int32": "int"}


def modules(kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return tuple(CodeModule("glsl", text(kernel).encode()) for kernel in kernels)


def text(kernel: KernelText) -> str:
    """The GLSL of one kernel."""
    element, scalars = _TYPES[kernel.dtype], kernel.all_scalars
    members = "".join(f"{_TYPES[dtype]} {name}; " for name, dtype in scalars.items())
    reads = "".join(
        f"layout(set = 0, binding = {1 + place}) readonly buffer Read{place} "
        f"{{ {element} {name}[]; }};\n"
        for place, name in enumerate(kernel.reads)
    )
    values = "".join(
        f"  {_TYPES[dtype]} {name} = arguments.{name};\n" for name, dtype in scalars.items()
    )
    body = kernel.body.replace("VAR", element).replace("ELEMENT", element)
    return f"""\
#version 450
layout(local_size_x = {THREADS}) in;
layout(set = 0, binding = 0) buffer Written {{ {element} o[]; }};
{reads}\
layout(push_constant) uniform Arguments {{ {members}uint tapml_grid_x; }} arguments;
void {kernel.name}() {{
  uint block = gl_WorkGroupID.z * gl_NumWorkGroups.x + gl_WorkGroupID.x;
  if (block >= arguments.tapml_grid_x) return;
  int i = int(block) * {THREADS} + int(gl_LocalInvocationID.x);
{values}\
  if (i < n) {{ {body} }}
}}
void main() {{ {kernel.name}(); }}
"""
