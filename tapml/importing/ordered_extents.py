"""Writes equal extents alike when a model is imported: ``2 * n`` as ``n * 2``.

TVM fuses two functions only where their extents are written the same, and refuses a module where a
reshape to ``2 * n`` rows meets ``n * 2`` others.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tapml.importing.relax_function import ENTRY, with_main


def order_extents(module: Any) -> Any:
    """Simplify the shapes that operations of ``main`` are given, and so those of what they make."""
    return with_main(module, _Ordered().visit_expr(module[ENTRY]))


@mutator
class _Ordered(PyExprMutator):  # type: ignore[misc]
    """The shapes of what uses a tensor follow from the tensor's."""

    def visit_shape_expr_(self, shape: Any) -> Any:
        simplify = tvm.sym.Analyzer().simplify
        return relax.ShapeExpr([simplify(extent) for extent in shape.values])
