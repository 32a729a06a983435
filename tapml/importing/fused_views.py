"""Turns reshapes between fusible operators into operators, so that they fuse.

A reshape is a free view, but TVM does not fuse across it, which costs a launch. Before fusion, a
reshape between two operators that would otherwise fuse becomes an operator, which then fuses with
its neighbours and is an index computation in their kernel. One that did not fuse becomes a view
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import relax, topi
from tvm.relax import transform

from tapml.importing.relax_function import (
    ENTRY,
    Uses,
    bindings,
    is_one_dataflow_block,
    is_tir_call,
    operands,
    operation_name,
    with_bindings,
    with_main,
)
from tapml.importing.tir_patterns import ANCHORS, INJECTIVE, is_permutation, is_product, pattern

_RESHAPE: Final = "relax.reshape"
_NAME: Final = "reshape"


def views_to_operators(module: Any) -> tuple[Any, frozenset[str]]:
    """Turn the views in ``main`` that prevent fusion into operators.

    Returns
    -------
    module
        Its functions are annotated with TVM's operator patterns.
    views
        Names of the functions that are such views.
    """
    main = module[ENTRY]
    if not is_one_dataflow_block(main):
        return module, frozenset()
    opened = dict(_between(module, Uses(main)))
    if not opened:
        return module, frozenset()
    builder = relax.BlockBuilder(module)
    names: set[str] = set()
    changed = []
    for binding in bindings(main):
        source = opened.get(binding.var)
        if source is not None:
            call = _as_operator(builder, source, binding.var)
            names.add(str(call.args[0].name_hint))
            changed.append(relax.VarBinding(binding.var, call))
        else:
            changed.append(binding)
    module = with_main(builder.get(), with_bindings(main, changed))
    # A view that such an operator is a view of is no longer needed, and would be a second reader.
    return transform.DeadCodeElimination([ENTRY])(module), frozenset(names)


def operators_to_views(module: Any, views: frozenset[str]) -> Any:
    """Turn the operators of :func:`views_to_operators` that did not fuse back into views."""
    main = module[ENTRY]
    if not views or not is_one_dataflow_block(main):
        return module
    builder = relax.BlockBuilder(module)
    changed = []
    for binding in bindings(main):
        value = binding.value
        if is_tir_call(value) and str(value.args[0].name_hint) in views:
            (operand,) = value.args[1].fields
            view = builder.normalize(relax.op.reshape(operand, list(binding.var.ty.shape.values)))
            changed.append(relax.VarBinding(binding.var, view))
        else:
            changed.append(binding)
    return with_main(module, with_bindings(main, changed))


def _between(module: Any, uses: Uses) -> Iterator[tuple[Any, Any]]:
    """Views that prevent two operators from fusing, each with its source."""
    for view, value in uses.made_by.items():
        reader = uses.only_reader(view)
        if operation_name(value) != _RESHAPE or reader is None:
            continue
        after = _function(module, uses.made_by[reader])
        source = value.args[0]
        while uses.only_reader(source) is not None and _is_view(uses.made_by.get(source)):
            source = uses.made_by[source].args[0]
        before = _function(module, uses.made_by.get(source))
        if before is None or after is None or uses.only_reader(source) is None:
            continue
        if not _binds_extents(uses.made_by[source], view):
            continue
        fusible = pattern(before) <= INJECTIVE and pattern(after) <= max(ANCHORS)
        if fusible and (is_permutation(before) or not is_product(after)):
            yield view, source


def _binds_extents(call: Any, view: Any) -> bool:
    """Whether a call's arguments determine the extents of a view of its result.

    The extents of a broadcast or constant tensor may appear in no argument. Fused with a reader
    that does not have them either, such as a sum, the function could not bind them.
    """
    given: list[Any] = []
    for operand in operands(call)[1:]:
        shaped = isinstance(operand.ty, relax.TensorType)
        given += list(operand.ty.shape.values) if shaped else [operand]
    return _symbols(view.ty.shape.values) <= _symbols(given)


def _symbols(extents: Iterable[Any]) -> set[Any]:
    found: set[Any] = set()
    for extent in extents:
        tvm_ffi.structural_walk(extent, (tvm.ir.Var, found.add))
    return found


def _is_view(value: Any) -> bool:
    return operation_name(value) == _RESHAPE


def _function(module: Any, value: Any) -> Any:
    """The PrimFunc of a call; None for other values."""
    return module[value.args[0]] if value is not None and is_tir_call(value) else None


def _as_operator(builder: Any, source: Any, view: Any) -> Any:
    scratch = relax.BlockBuilder()
    shape = list(view.ty.shape.values)
    call = scratch.call_te(topi.reshape, source, shape, primfunc_name_hint=_NAME)
    made, *arguments = call.args
    function = scratch.get()[made].with_attr("op_pattern", INJECTIVE)
    variable = builder.add_func(function, _NAME)
    return builder.normalize(tvm.ir.Call(call.op, [variable, *arguments], call.attrs, call.ty_args))
