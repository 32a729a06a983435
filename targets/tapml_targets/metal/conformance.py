"""Kernels in Metal's shading language, all of them in one module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tapml_targets.conformance_kernels import KernelText
from tapml_targets.library import CodeModule
from tapml_targets.metal.language import DIALECT

POINTERS: Final = True
BROKEN: Final = "undeclared_name"
_PROLOGUE: Final = "#include <metal_stdlib>\nusing namespace metal;\n"
_TYPES: Final = {"float32": "float", "uint32": "uint", "int32": "int"}


def modules(kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return (CodeModule(DIALECT, "\n".join((_PROLOGUE, *map(_text, kernels))).encode()),)


def broken(module: CodeModule) -> CodeModule:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    more = b"kernel void more(device int* o [[buffer(0)]]) { o[0] = undeclared_name; }\n"
    return replace(module, code=module.code + more)


def _text(kernel: KernelText) -> str:
    element, numbers = _TYPES[kernel.dtype], kernel.all_scalars
    buffers = [
        f"device {element}* o [[buffer(0)]]",
        *(
            f"const device {element}* {name} [[buffer({place})]]"
            for place, name in enumerate(kernel.reads, 1)
        ),
    ]
    members = "".join(f" {_TYPES[dtype]} {name};" for name, dtype in numbers.items())
    values = "".join(f"  {_TYPES[dtype]} {name} = arg.{name};\n" for name, dtype in numbers.items())
    body = kernel.body.replace("VAR", element).replace("ELEMENT", f"({element})")
    return f"""\
struct {kernel.name}_args_t {{{members} }};
kernel void {kernel.name}({", ".join(buffers)},
    constant {kernel.name}_args_t& arg [[buffer({len(buffers)})]],
    uint thread_index [[thread_position_in_grid]]) {{
  int i = thread_index;
{values}  if (i < n) {{ {body} }}
}}
"""
