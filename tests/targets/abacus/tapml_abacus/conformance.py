"""The kernels of the conformance suite in this platform's C, all of them in one module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tapml_abacus.language import LANGUAGE
from tapml_targets.conformance_kernels import KernelText
from tapml_targets.library import CodeModule

POINTERS: Final = True
BROKEN: Final = "undeclared_name"
_TYPES: Final = {dtype: spelled for spelled, dtype in LANGUAGE.types.items()}


def modules(kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return (
        CodeModule(LANGUAGE.dialect, "\n".join(map(_text, kernels)).encode(), kind=LANGUAGE.kind),
    )


def broken(module: CodeModule) -> CodeModule:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return replace(module, code=module.code + b"work more(int n) { undeclared_name = n; }")


def _text(kernel: KernelText) -> str:
    element = _TYPES[kernel.dtype]
    parameters = [
        f"cells {element}* o",
        *(f"const cells {element}* {name}" for name in kernel.reads),
        *(f"{_TYPES[dtype]} {name}" for name, dtype in kernel.all_scalars.items()),
    ]
    body = kernel.body.replace("VAR", element).replace("ELEMENT", f"({element})")
    return (
        f"work {kernel.name}({', '.join(parameters)}) {{ EACH(i) {{ if (i < n) {{ {body} }} }} }}\n"
    )
