"""Compiles a plan's operators: Libraries for targets, the CPU reference, float64 twins.

TVM is imported only when an operator is compiled or a reference is built.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.reference import compile_reference
    from tapml.compiler.reference_module import ReferenceModule
    from tapml.compiler.twin import compile_twins

__all__ = ["Compiler", "ReferenceModule", "compile_reference", "compile_twins"]

_HOME: Final = {
    "Compiler": "tapml.compiler.compiler",
    "ReferenceModule": "tapml.compiler.reference",
    "compile_reference": "tapml.compiler.reference",
    "compile_twins": "tapml.compiler.twin",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
