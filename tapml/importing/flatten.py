"""Flattens a lowered Relax function into steps over values, without tuples and aliases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

import tvm
from tvm import relax

from tapml.importing.operators import OperatorTable
from tapml.importing.relax_function import bindings, operation_name
from tapml.importing.symbolic import dtype_name, expression, shape_of
from tapml.plan.graph_plan import (
    Body,
    CallStep,
    Entry,
    Lifetime,
    Origin,
    Step,
    Storage,
    SymbolBounds,
    Value,
    ViewStep,
)
from tapml.plan.naming import UniqueNames
from tapml_targets.dtype import dtype
from tapml_targets.errors import UnsupportedOperatorError
from tapml_targets.expression import Expression, product, symbols_of

_IN_PLACE = ("relax.call_tir_inplace", "relax.call_inplace_packed")
_RESHAPE_PACKED = "vm.builtin.reshape"

Node: TypeAlias = "str | tuple[Any, ...] | _Extents"


@dataclass(frozen=True)
class _Extents:
    """A shape that is passed as a value."""

    values: tuple[Expression, ...]


@dataclass(frozen=True)
class CallSite:
    """Properties of a call apart from its operands."""

    results: tuple[str, ...]
    origins: tuple[Origin, ...] = ()
    layer: int | None = None
    path: str = ""


class Guide(Protocol):
    """Names call sites and values of a flattened function."""

    def site(self, index: int, callee: str) -> CallSite:
        """The call site of the `index`-th call."""

    def view(self, variable: str) -> str:
        """The name of the value that a reshaped variable becomes."""


@dataclass(frozen=True)
class FunctionTensor:
    """A tensor parameter of the function: the name and lifetime of its value."""

    name: str
    lifetime: Lifetime


class Flattener:
    """Turns one Relax function into an :class:`Entry`.

    Parameters
    ----------
    name
        Name of the entry.
    functions
        PrimFuncs by name.
    table
        Collects the operators.
    guide
        Names values and call sites.
    constant
        Returns the name of the weight that holds a constant.
    make_body
        Makes an operator's body, given a PrimFunc's name and its inputs' and outputs' names.
    variants
        GPU functions by the name of the PrimFunc they replace.
    """

    def __init__(
        self,
        name: str,
        functions: Mapping[str, Any],
        table: OperatorTable,
        guide: Guide,
        *,
        constant: Callable[[Any], str],
        make_body: Callable[[str, Sequence[str], Sequence[str]], Body | None],
        variants: Mapping[str, Any],
    ) -> None:
        self._name = name
        self._functions = functions
        self._table = table
        self._guide = guide
        self._constant = constant
        self._make_body = make_body
        self._variants = variants
        self._nodes: dict[Any, Node] = {}
        self._values: dict[str, Value] = {}
        self._storages: dict[str, Storage] = {}
        self._steps: list[Step] = []
        self._calls = 0
        self._integers: set[str] = set()
        self._value_names = UniqueNames(".")
        self._site_names = UniqueNames(".")

    def flatten(
        self, function: Any, tensors: Mapping[Any, FunctionTensor], bounds: Sequence[SymbolBounds]
    ) -> tuple[Entry, tuple[str, ...]]:
        """Flatten a function.

        Parameters
        ----------
        function
            A Relax function whose calls are ``call_tir``.
        tensors
            Its tensor parameters; unused ones get no value, except inputs.
        bounds
            Bounds of its shape symbols.

        Returns
        -------
        entry
            With the function's inputs; the caller adds outputs and state.
        outputs
            Value names of the function's results, tuples flattened.
        """
        self._parameters = tensors
        for parameter in function.params:
            if isinstance(parameter.ty, relax.ShapeType):
                extents = () if parameter.ty.values is None else shape_of(parameter.ty.values)
                self._nodes[parameter] = _Extents(extents)
                # An operator may take a symbol that no tensor's shape has, such as a length.
                self._integers.update(*map(symbols_of, extents))
            elif isinstance(parameter.ty, tvm.ir.PrimType):
                self._integers.add(str(parameter.name))
            elif tensors[parameter].lifetime in {"input", "state"}:
                self._tensor(parameter)
        for binding in bindings(function):
            self._bind(binding)
        outputs = _flat(self._resolve(function.body.body))
        inputs = tuple(
            str(self._nodes[p])
            for p in function.params
            if p in tensors and p in self._nodes and tensors[p].lifetime == "input"
        )
        known = self._integers.union(
            *(symbols_of(extent) for name in inputs for extent in self._values[name].shape)
        )
        entry = Entry(
            name=self._name,
            symbols=tuple(sorted(known)),
            inputs=inputs,
            outputs=(),
            state=(),
            values=self._values,
            storages=self._storages,
            steps=tuple(self._steps),
            bounds=tuple(bound for bound in bounds if bound.symbol in known),
        )
        return entry, outputs

    def _bind(self, binding: Any) -> None:
        value = binding.value
        operation = operation_name(value)
        if isinstance(binding, relax.MatchCast):
            self._refuse(f"a shape known only at run time ({binding.var.name})")
        if operation == "relax.call_tir":
            self._nodes[binding.var] = self._call(value, binding.var.ty)
        elif operation == "relax.reshape" or _packed_name(value) == _RESHAPE_PACKED:
            operand = value.args[1] if _packed_name(value) else value.args[0]
            self._nodes[binding.var] = self._reshape(operand, binding.var)
        elif operation in _IN_PLACE:
            self._refuse(f"the in-place call {operation}")
        elif operation:
            self._refuse(f"{_packed_name(value) or operation}, which has no operator body")
        elif isinstance(value, relax.If):
            self._refuse("a conditional")
        else:
            self._nodes[binding.var] = self._resolve(value)

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedOperatorError(
            f"{self._name!r} cannot become a plan: it contains {what}. Every step must be an "
            "operator that reads tensors and writes others"
        )

    def _resolve(self, value: Any) -> Node:
        if isinstance(value, tvm.ir.GenericConst):
            return self._weight(self._constant(value), value.ty)
        if isinstance(value, relax.Tuple):
            return tuple(self._resolve(field) for field in value.fields)
        if isinstance(value, relax.TupleGetItem):
            whole = self._resolve(value.tuple_value)
            if not isinstance(whole, tuple):
                self._refuse("an element of a value that is not a tuple")
            element: Node = whole[value.index]
            return element
        if isinstance(value, relax.ShapeExpr):
            return _Extents(shape_of(value.values))
        if value in self._nodes:
            return self._nodes[value]
        if value in self._parameters:
            return self._tensor(value)
        self._refuse(f"{type(value).__name__} {value}")

    def _tensor(self, parameter: Any) -> str:
        tensor = self._parameters[parameter]
        if tensor.lifetime == "weight":
            node = self._weight(tensor.name, parameter.ty)
        else:
            node = self._new_value(tensor.name, parameter.ty, tensor.lifetime)
        self._nodes[parameter] = node
        return node

    def _weight(self, name: str, ty: Any) -> str:
        return name if name in self._storages else self._new_value(name, ty, "weight")

    def _new_value(self, name: str, ty: Any, lifetime: Lifetime) -> str:
        name = self._value_names.take(name, 1)
        if ty.shape is None:
            self._refuse(f"{name}, whose shape is unknown")
        shape = shape_of(ty.shape)
        data_type = dtype_name(ty.dtype)
        nbytes = product((*shape, dtype(data_type).itemsize))
        self._storages[name] = Storage(name, nbytes, lifetime)
        self._values[name] = Value(name, name, 0, shape, data_type)
        return name

    def _reshape(self, operand: Any, variable: Any) -> str:
        source = self._resolve(operand)
        if not isinstance(source, str):
            self._refuse(f"a reshape of a tuple ({variable.name})")
        name = self._value_names.take(self._guide.view(str(variable.name)), 1)
        whole = self._values[source]
        self._values[name] = Value(
            name, whole.storage, whole.byte_offset, shape_of(variable.ty.shape), whole.dtype
        )
        self._steps.append(ViewStep(source, name))
        return name

    def _call(self, call: Any, ty: Any) -> Node:
        callee = str(call.args[0].name_hint)
        function = self._functions[callee]
        operands, integers = self._operands(call)
        site = self._guide.site(self._calls, callee)
        self._calls += 1
        operator = self._table.add(
            function,
            callee,
            reads=len(operands),
            variants={"gpu": self._variants[callee]} if callee in self._variants else {},
            make_body=lambda reads, writes: self._make_body(callee, reads, writes),
        )
        if isinstance(ty, relax.TupleType):
            named = site.results
            if len(named) != len(ty.fields):
                named = tuple(f"{site.results[0]}[{index}]" for index in range(len(ty.fields)))
            results: Node = tuple(
                self._new_value(name, each, "activation")
                for name, each in zip(named, ty.fields, strict=True)
            )
        else:
            results = self._new_value(site.results[0], ty, "activation")
        self._steps.append(
            CallStep(
                site=self._site_names.take(
                    "/".join(part for part in (self._name, site.path, operator) if part), 1
                ),
                operator=operator,
                arguments=operands + _flat(results),
                symbols=_named(integers, function),
                origins=site.origins,
                layer=site.layer,
            )
        )
        return results

    def _operands(self, call: Any) -> tuple[tuple[str, ...], list[Expression]]:
        """Tensors a call reads, and its integers: among the tensors or as a shape after them."""
        tensors: tuple[str, ...] = ()
        integers: list[Expression] = []
        operands = call.args[1]
        parts = operands.fields if isinstance(operands, relax.Tuple) else [operands]
        for part in parts:
            if isinstance(part.ty, tvm.ir.PrimType):
                integers.append(expression(part))
            else:
                tensors += _flat(self._resolve(part))
        if len(call.args) > 2:
            integers += [expression(value) for value in call.args[2].values]
        return tensors, integers


def _named(integers: Sequence[Expression], function: Any) -> tuple[tuple[str, Expression], ...]:
    """The integers a call passes, with the function's names for them."""
    parameters = [str(p.name) for p in function.params if tvm.ir.is_prim_var(p)]
    return tuple(zip(parameters, integers, strict=True))


def _packed_name(value: Any) -> str:
    if operation_name(value) == "relax.call_pure_packed":
        return str(getattr(value.args[0], "global_symbol", ""))
    return ""


def _flat(node: Node) -> tuple[str, ...]:
    if isinstance(node, str):
        return (node,)
    if isinstance(node, tuple):
        return tuple(name for part in node for name in _flat(part))
    return ()
