"""Functions of a shading language that TVM would expand.

TVM writes ``tanh`` as a quotient of exponentials: near zero its error is 3e-8 absolute, a thousand
times what Metal's own allows. Where the language leaves the result open, :mod:`.curves` has it.
It writes ``erf`` as a quotient of polynomials between two bounds, which a NaN does not pass.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.expression import call_name
from tapml_targets.codegen.reducers import is_nan

OWN: Final = frozenset({"tanh"})
"""Functions of Metal, and of :mod:`.curves`."""
_KINDS: Final = frozenset({"float32", "float16"})


def keep_own(function: Any, own: Collection[str] = OWN) -> Any:
    """`function` with calls of `own` functions as calls by name, which no pass expands.

    An ``erf`` that TVM expands gets what keeps NaN.
    """

    def call(node: Any) -> Any:
        name = call_name(node)
        if str(node.ty) not in _KINDS:
            return node
        if name in own:
            return tirx.call_pure_extern(str(node.ty), name, *node.args)
        return tirx.Select(is_nan(node.args[0]), node.args[0], node) if name == "erf" else node

    return tvm_ffi.structural_map(function, [(tvm.ir.Call, call)])
