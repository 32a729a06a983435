"""Functions of a shading language that TVM would expand.

TVM writes ``tanh`` as a quotient of exponentials: near zero its error is 3e-8 absolute, a thousand
times what Metal's own allows. Where the language leaves the result open, :mod:`.curves` has it.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.expression import call_name

_OWN: Final = frozenset({"tanh"})
_KINDS: Final = frozenset({"float32", "float16"})


def keep_own(function: Any) -> Any:
    """`function` with such calls as calls by name, which no pass expands."""

    def call(node: Any) -> Any:
        name = call_name(node)
        if name in _OWN and str(node.ty) in _KINDS:
            return tirx.call_pure_extern(str(node.ty), name, *node.args)
        return node

    return tvm_ffi.structural_map(function, [(tvm.ir.Call, call)])
