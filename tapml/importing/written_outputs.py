"""Copies what a function returns without computing it: an input, a constant, a view, a repetition.

A device's program writes its outputs by operators.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import tvm
from tvm import relax, topi
from tvm.relax import transform

from tapml.importing.relax_function import (
    ENTRY,
    bindings,
    is_one_dataflow_block,
    operation_name,
)

_NAME: Final = "copy"
_RESHAPE: Final = "relax.reshape"
# TVM's pattern for a function that fuses with nothing.
_OPAQUE: Final = 8


def copy_unwritten_outputs(module: Any, kept: Collection[int] = ()) -> Any:
    """A lowered module whose function ``main`` computes every output.

    Parameters
    ----------
    kept
        Positions of results that stay as they are: state that an entry does not change.
    """
    main = module[ENTRY]
    if not is_one_dataflow_block(main):
        return module
    made_by = {each.var: each.value for each in bindings(main)}
    result = main.body.body
    returned = made_by.get(result, result)
    several = isinstance(returned, relax.Tuple)
    fields = list(returned.fields) if several else [result]
    unwritten, seen = [], set()
    for index, field in enumerate(fields):
        if index in kept:
            continue
        root = _root(field, made_by)
        if root in seen or not _is_written(root, made_by):
            unwritten.append(index)
        seen.add(root)
    if not unwritten:
        return module
    builder = relax.BlockBuilder(module)
    changed = [each for each in bindings(main) if not each.var.same_as(result)]
    if not several and result in made_by:
        # It was the block's result, and is a step of it now.
        inner = relax.DataflowVar(str(result.name), result.ty)
        changed.append(relax.VarBinding(inner, made_by[result]))
        fields = [inner]
    for index in unwritten:
        call = _copy(builder, fields[index])
        kind = relax.DataflowVar if several else relax.Var
        fields[index] = kind(f"{_NAME}_{index}", call.ty)
        changed.append(relax.VarBinding(fields[index], call))
    if several:
        result = relax.Var(str(getattr(result, "name", "results")), result.ty)
        changed.append(relax.VarBinding(result, relax.Tuple(fields)))
    else:
        (result,) = fields
    body = relax.SeqExpr([relax.DataflowBlock(changed)], result)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    finished = builder.get()
    finished.update_func(finished.get_global_var(ENTRY), function)
    return transform.CanonicalizeBindings()(finished)


def _root(field: Any, made_by: Mapping[Any, Any]) -> Any:
    """What a view is a view of, and another name of it."""
    while (value := made_by.get(field)) is not None:
        if operation_name(value) == _RESHAPE:
            field = value.args[0]
        elif isinstance(value, tvm.ir.Var):
            field = value
        else:
            break
    return field


def _is_written(root: Any, made_by: Mapping[Any, Any]) -> bool:
    value = made_by.get(root)
    if isinstance(value, relax.TupleGetItem):
        value = made_by.get(value.tuple_value)
    return bool(operation_name(value))


def _copy(builder: Any, source: Any) -> Any:
    scratch = relax.BlockBuilder()
    call = scratch.call_te(topi.identity, source, primfunc_name_hint=_NAME)
    made, *arguments = call.args
    variable = builder.add_func(scratch.get()[made].with_attr("op_pattern", _OPAQUE), _NAME)
    return builder.normalize(tvm.ir.Call(call.op, [variable, *arguments], call.attrs, call.ty_args))
