"""Reads the steps of an operator out of its PrimFunc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import tvm
from tvm import s_tir, tirx

from tapml.diagnosis.evaluation import rounded
from tapml.diagnosis.steps import (
    Axis,
    Constant,
    Load,
    Node,
    Operation,
    Step,
    Steps,
    Tensor,
    Variable,
    walk,
)
from tapml.plan.graph_plan import Operator
from tapml.plan.naming import UniqueNames, readable
from tapml_targets.codegen.expression import call_name
from tapml_targets.errors import UnsupportedOperatorError

_BINARY: Final = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Mod": "truncmod",
    "FloorDiv": "floordiv", "FloorMod": "floormod", "Min": "min", "Max": "max",
    "EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge",
    "And": "and", "Or": "or",
}  # fmt: skip
_COMBINING: Final = ("add", "mul", "max", "min")
_KEPT, _REDUCED = 0, 2
# Block names that do not describe the computation.
_VAGUE: Final = "compute"


@dataclass(frozen=True)
class StepSource:
    """A step's part of the PrimFunc, and the TVM buffers that it writes and reads."""

    statement: Any
    written: Any
    read: tuple[Any, ...]


@dataclass(frozen=True)
class ReadOperator:
    """An operator, its steps, and the part of its PrimFunc for each."""

    operator: Operator
    steps: Steps
    function: Any
    sources: tuple[StepSource, ...]


def read_steps(operator: Operator) -> ReadOperator:
    """The steps of `operator`, named after the operators of its body if it has one.

    Raises
    ------
    UnsupportedOperatorError
        If the function is not a sequence of blocks that each write one tensor: sorts, scans, and
        selections of a value together with its index.
    """
    function = tvm.ir.load_json(operator.function)
    blocks = _blocks(function.body)
    parts = _body_steps(operator)
    if len(parts) == len(blocks):
        read = _Reader(operator, function, [name for name, _ in parts]).read(blocks)
        found = [_operations(step) for step in read.steps.steps]
        if found == [_operations(step) for _, step in parts]:
            return read
    return _Reader(operator, function, ()).read(blocks)


def _blocks(body: Any) -> list[Any]:
    """The loop nests of an unscheduled function."""
    if isinstance(body, s_tir.SBlockRealize) and not body.block.iter_vars:
        body = body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _body_steps(operator: Operator) -> list[tuple[str, Step]]:
    """The steps of all operators of the body in order, and their names; empty without a body."""
    found: list[tuple[str, Step]] = []
    for call in operator.body.entry.calls if operator.body is not None else ():
        part = operator.body.operators[call.operator]  # type: ignore[union-attr]
        try:
            steps = read_steps(part).steps.steps
        except UnsupportedOperatorError:
            return []
        alone = len(steps) == 1
        found += [(part.name if alone else f"{part.name}.{step.name}", step) for step in steps]
    return found


def _operations(step: Step) -> list[str]:
    """A step's computation, independent of tensor names."""
    return [step.combine, *(n.name for n in walk(step.value) if isinstance(n, Operation))]


class _Reader:
    def __init__(self, operator: Operator, function: Any, names: Sequence[str]) -> None:
        self._operator = operator
        self._function = function
        self._known_names = names
        self._unique = UniqueNames("_")
        self._names: dict[Any, str] = {}
        self._buffers: dict[str, Any] = {}
        self._tensors: dict[str, Tensor] = {}
        self._steps: list[Step] = []
        self._sources: list[StepSource] = []
        tensors = [p for p in function.params if not tvm.ir.is_prim_var(p)]
        for parameter, buffer in zip(operator.parameters, tensors, strict=True):
            if parameter.role == "inout":
                raise self._refused(f"it changes {parameter.name} in place")
            self._declare(buffer, self._unique.take(parameter.name))

    def read(self, blocks: Sequence[Any]) -> ReadOperator:
        for block in blocks:
            self._add(block)
        operator = self._operator
        outputs = tuple(parameter.name for parameter in operator.written)
        for name in outputs:
            if all(step.writes != name for step in self._steps):
                raise self._refused(f"no block writes {name}")
        inputs = tuple(parameter.name for parameter in operator.read)
        steps = Steps(operator.name, inputs, outputs, self._tensors, tuple(self._steps))
        return ReadOperator(operator, steps, self._function, tuple(self._sources))

    def _declare(self, buffer: Any, name: str) -> None:
        self._names[buffer] = name
        self._buffers[name] = buffer
        shape = tuple(self._node(extent, {}) for extent in buffer.ty.shape)
        self._tensors[name] = Tensor(name, shape, _dtype(buffer.ty))

    def _add(self, statement: Any) -> None:
        realize = statement
        while isinstance(realize, tirx.For):
            realize = realize.body
        if not isinstance(realize, s_tir.SBlockRealize):
            raise self._refused(f"it holds a {type(realize).__name__} outside its blocks")
        block, store = realize.block, realize.block.body
        if not isinstance(store, tirx.BufferStore) or block.alloc_buffers:
            raise self._refused(f"block {block.name_hint!r} does more than write one tensor")
        if not isinstance(realize.predicate, tirx.IntImm) or not realize.predicate.value:
            raise self._refused(f"block {block.name_hint!r} runs under a condition")
        axes, known = self._axes(block)
        name = self._unique.take(self._name(block, store))
        if store.buffer not in self._names:
            self._declare(store.buffer, name)
        written = self._names[store.buffer]
        if any(step.writes == written for step in self._steps):
            raise self._refused(f"several blocks write {written!r}")
        value = self._node(store.value, known)
        step = Step(name, written, self._tensors[written].dtype, axes, value)
        indices = [self._node(index, known) for index in store.indices]
        if not _in_order(indices, step):
            raise self._refused(f"block {block.name_hint!r} writes its elements out of order")
        if step.reduced:
            step = self._reduction(step, block, known)
        if written in step.reads:
            raise self._refused(f"block {block.name_hint!r} reads what it writes")
        self._steps.append(step)
        read = tuple(self._buffers[tensor] for tensor in step.reads)
        self._sources.append(StepSource(statement, store.buffer, read))

    def _name(self, block: Any, store: Any) -> str:
        if self._known_names:
            return self._known_names[len(self._steps)]
        name = readable(str(block.name_hint).removeprefix("T_"))
        if name != _VAGUE:
            return name
        return call_name(store.value) or type(store.value).__name__.lower()

    def _axes(self, block: Any) -> tuple[tuple[Axis, ...], dict[Any, Node]]:
        axes: list[Axis] = []
        known: dict[Any, Node] = {}
        names = {_KEPT: iter("ijklmnopqabcd"), _REDUCED: iter("rstuvwxyz")}
        for each in block.iter_vars:
            if each.iter_type not in names:
                raise self._refused(f"block {block.name_hint!r} has an ordered loop")
            name = next(names[each.iter_type])
            axes.append(Axis(name, self._node(each.dom.extent, {}), each.iter_type == _REDUCED))
            known[each.var] = Variable(name, _dtype(each.var))
        return tuple(axes), known

    def _reduction(self, step: Step, block: Any, known: dict[Any, Node]) -> Step:
        """Split ``sum = sum + term`` into how terms are combined and the term."""
        value, initial = step.value, block.init
        if (
            isinstance(initial, tirx.BufferStore)
            and isinstance(value, Operation)
            and value.name in _COMBINING
        ):
            left, right = value.operands
            for mine, term in ((left, right), (right, left)):
                own = isinstance(mine, Load) and mine.buffer == step.writes
                if own and isinstance(mine, Load) and _in_order(mine.indices, step):
                    start = self._node(initial.value, known)
                    return replace(step, value=term, combine=value.name, initial=start)
        raise self._refused(f"block {block.name_hint!r} reduces in a way of its own")

    def _node(self, expression: Any, known: dict[Any, Node]) -> Node:
        expression = _without_nan(expression)
        kind = type(expression).__name__
        if kind in ("IntImm", "FloatImm"):
            return _constant(expression)
        if kind == "TensorLoad":
            if expression.source not in self._names:
                raise self._refused("it reads a tensor before it is written")
            indices = tuple(self._node(index, known) for index in expression.indices)
            return Load(self._names[expression.source], indices, _dtype(expression))
        if kind == "Var":
            return known.get(expression) or Variable(str(expression.name), _dtype(expression))
        name, operands = _parts(kind, expression)
        if not name:
            raise self._refused(f"it holds a {kind}: {str(expression)[:100]}")
        nodes = tuple(self._node(operand, known) for operand in operands)
        return Operation(name, nodes, _dtype(expression))

    def _refused(self, why: str) -> UnsupportedOperatorError:
        return UnsupportedOperatorError(
            f"operator {self._operator.name!r} cannot be taken apart into steps: {why}"
        )


def _without_nan(expression: Any) -> Any:
    """The extreme of two that is asked for NaN first: numpy's keeps NaN by itself."""
    found = expression
    while isinstance(found, tirx.Select) and call_name(found.condition) == "isnan":
        found = found.false_value
    return found if isinstance(found, tirx.Max | tirx.Min) else expression


def _in_order(indices: Sequence[Node], step: Step) -> bool:
    """Whether `indices` are the axes of the tensor that `step` writes."""
    return [getattr(index, "name", None) for index in indices] == [a.name for a in step.kept]


def _parts(kind: str, expression: Any) -> tuple[str, list[Any]]:
    """Name and operands of an operation; an empty name for other nodes."""
    if kind in _BINARY:
        return _BINARY[kind], [expression.a, expression.b]
    if kind == "Cast":
        return "cast", [expression.value]
    if kind == "Not":
        return "not", [expression.a]
    if kind == "Select":
        chosen, other = expression.true_value, expression.false_value
        return "select", [expression.condition, chosen, other]
    if kind == "Call":
        name = call_name(expression)
        return ("select" if name == "if_then_else" else name), list(expression.args)
    return "", []


def _constant(expression: Any) -> Constant:
    dtype = _dtype(expression)
    if type(expression).__name__ == "IntImm":
        return Constant(int(expression.value), dtype)
    return Constant(float(rounded(np.asarray(float(expression.value)), dtype)), dtype)


def _dtype(expression: Any) -> str:
    """Name of the dtype of an expression, or of a buffer's type."""
    type_ = getattr(expression, "ty", expression)
    return str(getattr(type_, "dtype", type_))
