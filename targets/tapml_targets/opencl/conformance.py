"""Kernels in OpenCL C, all of them in one module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tapml_targets.conformance_kernels import KernelText
from tapml_targets.library import CodeModule

POINTERS: Final = True
BROKEN: Final = "undeclared_name"
_TYPES: Final = {"float32": "float", "uint32": "uint", "int32": "int"}


def modules(kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return (CodeModule("opencl-c", "\n".join(map(_text, kernels)).encode()),)


def broken(module: CodeModule) -> CodeModule:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return replace(module, code=module.code + b"__kernel void more() { undeclared_name = 1; }")


def _text(kernel: KernelText) -> str:
    element = _TYPES[kernel.dtype]
    parameters = [
        f"__global {element}* o",
        *(f"__global const {element}* {name}" for name in kernel.reads),
        *(f"{_TYPES[dtype]} {name}" for name, dtype in kernel.all_scalars.items()),
    ]
    body = kernel.body.replace("VAR", element).replace("ELEMENT", f"({element})")
    return f"""\
__kernel void {kernel.name}({", ".join(parameters)}) {{
  int i = get_global_id(0);
  if (i < n) {{ {body} }}
}}
"""
