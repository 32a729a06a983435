"""Writes equal extents alike when a model is imported: ``2 * n`` as ``n * 2``.

TVM fuses two functions only where their extents are written the same, and refuses a module where a
reshape to ``2 * n`` rows meets ``n * 2`` others.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tapml.importing.relax_function import (
    ENTRY,
    bindings,
    is_one_dataflow_block,
    operation_name,
    with_bindings,
    with_main,
)


def order_extents(module: Any) -> Any:
    """Simplify the shapes that operations of ``main`` are given."""
    main = module[ENTRY]
    if not is_one_dataflow_block(main):
        return module
    builder, simplify = relax.BlockBuilder(), tvm.sym.Analyzer().simplify

    def ordered(given: Any) -> Any:
        if not isinstance(given, relax.ShapeExpr):
            return given
        return relax.ShapeExpr([simplify(extent) for extent in given.values])

    def bound(binding: Any) -> Any:
        call = binding.value
        given = list(call.args) if operation_name(call) else []
        if not any(isinstance(each, relax.ShapeExpr) for each in given):
            return binding
        made = relax.Call(call.op, list(map(ordered, given)), call.attrs, call.ty_args)
        return relax.VarBinding(binding.var, builder.normalize(made))

    return with_main(module, with_bindings(main, [bound(each) for each in bindings(main)]))
