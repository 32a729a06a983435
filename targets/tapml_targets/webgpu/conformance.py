"""Kernels in WGSL, in the form that Libraries hold: a module each, folded grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tapml_targets.conformance_kernels import THREADS, KernelText, misspelt
from tapml_targets.library import CodeModule

POINTERS: Final = True
BROKEN: Final = "undeclared_name"
broken = misspelt
_TYPES: Final = {"float32": "f32", "uint32": "u32", "int32": "i32"}


def modules(kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return tuple(CodeModule("wgsl", text(kernel).encode()) for kernel in kernels)


def text(kernel: KernelText) -> str:
    """The WGSL of one kernel."""
    element, scalars = _TYPES[kernel.dtype], kernel.all_scalars
    members = "".join(f"{name}: {_TYPES[dtype]}, " for name, dtype in scalars.items())
    reads = "".join(
        f"@group(0) @binding({1 + place}) var<storage, read> {name} : array<{element}>;\n"
        for place, name in enumerate(kernel.reads)
    )
    values = "".join(f"  let {name} = arguments.{name};\n" for name in scalars)
    body = kernel.body.replace("VAR", "var").replace("ELEMENT", element)
    return f"""\
struct Arguments {{ {members}packGridDimX: u32 }}
@group(0) @binding(0) var<storage, read_write> o : array<{element}>;
{reads}\
@group(0) @binding({1 + len(kernel.reads)}) var<uniform> arguments : Arguments;
@compute @workgroup_size({THREADS}, 1, 1)
fn {kernel.name}(@builtin(workgroup_id) block : vec3<u32>,
  @builtin(num_workgroups) grid : vec3<u32>, @builtin(local_invocation_id) lane : vec3<u32>) {{
  if (block.z * grid.x + block.x > arguments.packGridDimX) {{ return; }}
  let i = i32(block.z * grid.x + block.x) * {THREADS} + i32(lane.x);
{values}\
  if (i < n) {{
    {body}
  }}
}}
"""
