"""Fuses the producers of a reduction or a product into it, if nothing else reads them.

TVM fuses the consumers of a mean, softmax or matrix product, but not the producers: a norm's
squares and attention's scaled scores are written to memory and read again. This pass runs after
TVM's fusion and joins such a group of operators to its only reader. Elementwise and injective
work joins a reduction. Only permutations join a product, because a product reads each operand
many times, and not broadcasts, because TVM's product schedules fail for an index such as
``head // 2``. Packed weights are an exception: their product is bound by memory, and unpacking
reads far less of it than reading what was unpacked.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import tvm
from tvm import relax
from tvm.relax.utils import copy_with_new_vars

from tapml.importing.packed_weights import unpacks
from tapml.importing.relax_function import (
    ENTRY,
    Uses,
    bindings,
    is_one_dataflow_block,
    is_same,
    is_tir_call,
    with_bindings,
    with_main,
)
from tapml.importing.tir_patterns import ANCHORS, INJECTIVE, is_permutation, is_product, pattern

_FUSED: Final = "fused_"


class _Group(NamedTuple):
    """Operators that one call of ``main`` runs: an inlined fused function, or a single operator."""

    name: str
    parameters: tuple[Any, ...]
    arguments: tuple[Any, ...]
    inner: tuple[Any, ...]
    output: Any


def fuse_producers(module: Any, views: frozenset[str]) -> Any:
    """Join groups of ``main`` to the reductions and products that alone read them.

    `module` comes from FuseOps. `views` names functions that are views if nothing fuses with them;
    these alone are not joined to anything.
    """
    main = module[ENTRY]
    if not is_one_dataflow_block(main):
        return module
    uses = Uses(main)
    groups: dict[Any, _Group] = {}
    changed: set[Any] = set()
    gone: set[Any] = set()
    for binding in bindings(main):
        group = _group(module, binding)
        if group is None:
            continue
        for argument in group.arguments:
            before = groups.get(argument)
            if before is None or before.name in views or uses.only_reader(argument) is None:
                continue
            if _can_join(module, before, group, argument):
                group = _joined(before, group, argument)
                changed.add(binding.var)
                gone.add(argument)
        groups[binding.var] = group
    return _rebuilt(module, groups, changed - gone, gone) if changed else module


def _group(module: Any, binding: Any) -> _Group | None:
    value = binding.value
    if is_tir_call(value):
        if len(value.args) > 2 or not isinstance(value.args[1], relax.Tuple):
            return None
        arguments = tuple(value.args[1].fields)
        parameters = tuple(relax.Var(f"in_{i}", each.ty) for i, each in enumerate(arguments))
        call = tvm.ir.Call(
            value.op, [value.args[0], relax.Tuple(parameters)], value.attrs, value.ty_args
        )
        inner = relax.VarBinding(relax.DataflowVar(binding.var.name, binding.var.ty), call)
        return _Group(value.args[0].name_hint, parameters, arguments, (inner,), inner.var)
    if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
        return None
    function = _in_terms_of(module[value.op], value.args)
    inner = tuple(bindings(function))
    if not all(is_tir_call(each.value) for each in inner):
        return None
    output = function.body.body
    return _Group(value.op.name_hint, tuple(function.params), tuple(value.args), inner, output)


def _in_terms_of(function: Any, arguments: Any) -> Any:
    """A copy of a fused function with the caller's symbolic extents.

    Fresh variables are needed because two calls of one function may join one group.
    """
    function = copy_with_new_vars(function)
    extents: dict[Any, Any] = {}
    for parameter, argument in zip(function.params, arguments, strict=True):
        if isinstance(parameter.ty, relax.TensorType):
            for mine, theirs in zip(parameter.ty.shape, argument.ty.shape, strict=True):
                if isinstance(mine, tvm.ir.Var):
                    extents[mine] = theirs
    return function.bind_symbolic_vars(extents) if extents else function


def _can_join(module: Any, before: _Group, after: _Group, argument: Any) -> bool:
    parameters = (*before.parameters, *after.parameters)
    if not all(isinstance(each.ty, relax.TensorType) for each in parameters):
        return False
    given = [module[each.value.args[0]] for each in before.inner]
    parameter = _taken(after, argument)
    readers = [
        module[each.value.args[0]]
        for each in after.inner
        if any(is_same(field, parameter) for field in each.value.args[1].fields)
    ]
    if not all(pattern(each) <= INJECTIVE for each in given):
        return False
    if not readers or not all(pattern(each) in ANCHORS for each in readers):
        return False
    if not any(map(is_product, readers)):
        return True
    return unpacks(given[0]) or all(map(is_permutation, given))


def _joined(before: _Group, after: _Group, argument: Any) -> _Group:
    """One group that does the work of both; a tensor that both read becomes one parameter."""
    parameters: list[Any] = []
    arguments: list[Any] = []
    renamed: dict[Any, Any] = {}
    handed = _taken(after, argument)
    for group in (before, after):
        for parameter, given in zip(group.parameters, group.arguments, strict=True):
            if is_same(parameter, handed):
                continue
            known = _position(arguments, given)
            if known is None:
                parameters.append(parameter)
                arguments.append(given)
            else:
                renamed[parameter] = parameters[known]
    result = relax.DataflowVar(before.output.name, before.output.ty)
    renamed[before.output] = renamed[handed] = result
    inner = tuple(
        relax.VarBinding(renamed.get(each.var, each.var), _with_operands(each.value, renamed))
        for each in (*before.inner, *after.inner)
    )
    name = _FUSED + "_".join(each.name.removeprefix(_FUSED) for each in (before, after))
    return _Group(name, tuple(parameters), tuple(arguments), inner, after.output)


def _taken(group: _Group, argument: Any) -> Any:
    """The group's parameter for an argument."""
    pairs = zip(group.parameters, group.arguments, strict=True)
    return next(parameter for parameter, given in pairs if is_same(given, argument))


def _position(arguments: Any, wanted: Any) -> int | None:
    return next((i for i, each in enumerate(arguments) if is_same(each, wanted)), None)


def _with_operands(call: Any, renamed: dict[Any, Any]) -> Any:
    """A ``call_tir`` with other operands."""
    fields = [renamed.get(each, each) for each in call.args[1].fields]
    arguments = [call.args[0], relax.Tuple(fields), *call.args[2:]]
    return tvm.ir.Call(call.op, arguments, call.attrs, call.ty_args)


def _rebuilt(module: Any, groups: dict[Any, _Group], changed: set[Any], gone: set[Any]) -> Any:
    builder = relax.BlockBuilder(module)
    main = module[ENTRY]
    kept = []
    for binding in bindings(main):
        if binding.var in changed:
            group = groups[binding.var]
            variable = builder.add_func(_function(group), group.name)
            call = builder.normalize(tvm.ir.Call(variable, list(group.arguments)))
            kept.append(relax.VarBinding(binding.var, call))
        elif binding.var not in gone:
            kept.append(binding)
    return with_main(builder.get(), with_bindings(main, kept))


def _function(group: _Group) -> Any:
    builder = relax.BlockBuilder()
    inner = [relax.VarBinding(each.var, builder.normalize(each.value)) for each in group.inner]
    output = relax.Var(group.output.name, group.output.ty)
    last = inner.pop()
    inner.append(relax.VarBinding(output, last.value))
    body = relax.SeqExpr([relax.DataflowBlock(inner)], output)
    attributes = tvm.ir.make_node("ir.DictAttrs", Primitive=True)
    function = relax.Function(list(group.parameters), body, output.ty, True, attributes)
    return copy_with_new_vars(function)
