"""Reshapes between what could be fused become part of it.

A reshape is a view and costs nothing, but TVM fuses nothing across one: two launches stand where
one would do. So before fusion a reshape between two operators that are fused when nothing is
between them becomes an operator of its own, which is fused with its neighbours and then is an
index computation inside their kernel. One that found no neighbour becomes a view again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import relax, topi
from tvm.relax import transform

from tapml.graph.relax_function import (
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
from tapml.graph.tir_patterns import ANCHORS, INJECTIVE, is_permutation, is_product, pattern

_RESHAPE: Final = "relax.reshape"
_NAME: Final = "reshape"


def open_views(module: Any) -> tuple[Any, frozenset[str]]:
    """Make operators of the views in ``main`` that keep operators apart.

    Returns
    -------
    module
        Its functions say what TVM may fuse them with.
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
    # A view of which such an operator is a view is needed no more, and would be a second reader.
    return transform.DeadCodeElimination([ENTRY])(module), frozenset(names)


def close_views(module: Any, views: frozenset[str]) -> Any:
    """Make views again of the operators of :func:`open_views` that nothing was fused with."""
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
    """Views that keep two operators apart, each with what it is a view of."""
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
        if not _is_told_extents(uses.made_by[source], view):
            continue
        fusible = pattern(before) <= INJECTIVE and pattern(after) <= max(ANCHORS)
        if fusible and (is_permutation(before) or not is_product(after)):
            yield view, source


def _is_told_extents(call: Any, view: Any) -> bool:
    """Whether what a call is given says how large a view of its result is.

    A broadcast tensor or one of a constant has extents that it alone knows: put together with a
    reader that gives them to nobody, as a sum does, it would be told them by nothing.
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
    """The PrimFunc that a call calls, where it is one."""
    return module[value.args[0]] if value is not None and is_tir_call(value) else None


def _as_operator(builder: Any, source: Any, view: Any) -> Any:
    scratch = relax.BlockBuilder()
    shape = list(view.ty.shape.values)
    call = scratch.call_te(topi.reshape, source, shape, primfunc_name_hint=_NAME)
    made, *arguments = call.args
    function = scratch.get()[made].with_attr("op_pattern", INJECTIVE)
    variable = builder.add_func(function, _NAME)
    return builder.normalize(tvm.ir.Call(call.op, [variable, *arguments], call.attrs, call.ty_args))
