"""An operator as a sequence of steps that each compute one tensor.

The unscheduled PrimFunc of a fused operator *is* its body step by step: one block of loops for each
intermediate tensor. Unlike the fused Relax functions, it also covers operators that have several
steps without fusion (softmax, layer norm, GELU). An element of a step is a small expression tree,
which is read, rewritten and shown without TVM.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias


@dataclass(frozen=True)
class Constant:
    """A literal number."""

    value: float | int
    dtype: str


@dataclass(frozen=True)
class Variable:
    """An axis of the step, or a shape symbol."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Load:
    """One element of a tensor."""

    buffer: str
    indices: tuple[Node, ...]
    dtype: str


@dataclass(frozen=True)
class Operation:
    """A function of other nodes; `dtype` is that of the result.

    Names are those of the field: ``add``, ``mul``, ``select``, ``lt``, ``cast``, ``exp``, ``tanh``.
    """

    name: str
    operands: tuple[Node, ...]
    dtype: str


Node: TypeAlias = Constant | Variable | Load | Operation

_INFIX: Final[dict[str, tuple[str, int]]] = {
    "or": ("or", 1),
    "and": ("and", 2),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "add": ("+", 6),
    "sub": ("-", 6),
    "mul": ("*", 7),
    "div": ("/", 7),
    "floordiv": ("//", 7),
    "floormod": ("%", 7),
}


def children(node: Node) -> tuple[Node, ...]:
    """The operands of `node`."""
    if isinstance(node, Load):
        return node.indices
    return node.operands if isinstance(node, Operation) else ()


def with_children(node: Node, nodes: tuple[Node, ...]) -> Node:
    """`node` with other operands."""
    if isinstance(node, Load):
        return replace(node, indices=nodes)
    return replace(node, operands=nodes) if isinstance(node, Operation) else node


def walk(node: Node) -> Iterator[Node]:
    """`node` and everything below it, operands first."""
    for child in children(node):
        yield from walk(child)
    yield node


def rewrite(node: Node, change: Callable[[Node], Node]) -> Node:
    """`node` with `change` applied to every node, operands first."""
    changed = tuple(rewrite(child, change) for child in children(node))
    return change(with_children(node, changed) if changed != children(node) else node)


def occurrences(node: Node) -> Iterator[tuple[Node, Callable[[Node], Node]]]:
    """Every node of the value, with a function that replaces this one occurrence.

    Indices of loads are left out: they belong to an address, not to a value.
    """
    yield node, _itself
    if isinstance(node, Operation):
        for position, child in enumerate(node.operands):
            for found, change in occurrences(child):
                yield found, partial(_replaced, node, position, change)


def _itself(replacement: Node) -> Node:
    return replacement


def _replaced(
    node: Operation, position: int, change: Callable[[Node], Node], replacement: Node
) -> Node:
    inner = change(replacement)
    return replace(
        node, operands=(*node.operands[:position], inner, *node.operands[position + 1 :])
    )


def text(node: Node, outer: int = 0) -> str:
    """`node` as readable text."""
    if isinstance(node, Constant):
        return f"{node.value:.8g}" if isinstance(node.value, float) else str(node.value)
    if isinstance(node, Variable):
        return node.name
    if isinstance(node, Load):
        return f"{node.buffer}[{', '.join(text(index) for index in node.indices)}]"
    if node.name in _INFIX:
        sign, strength = _INFIX[node.name]
        left, right = node.operands
        whole = f"{text(left, strength)} {sign} {text(right, strength + 1)}"
        return f"({whole})" if strength < outer else whole
    if node.name == "cast":
        return f"{node.dtype}({text(node.operands[0])})"
    if node.name == "select":
        condition, chosen, other = node.operands
        whole = f"{text(chosen, 1)} if {text(condition, 1)} else {text(other)}"
        return f"({whole})" if outer else whole
    return f"{node.name}({', '.join(text(operand) for operand in node.operands)})"


@dataclass(frozen=True)
class Tensor:
    """A tensor that a step reads or writes; extents may hold shape symbols."""

    name: str
    shape: tuple[Node, ...]
    dtype: str


@dataclass(frozen=True)
class Axis:
    """A loop from 0 up to `extent`; `reduces` if it is a reduction axis."""

    name: str
    extent: Node
    reduces: bool


@dataclass(frozen=True)
class Step:
    """One tensor and the computation of its elements.

    Attributes
    ----------
    name
        Display name: the body's operator, or the computation.
    writes
        The tensor; its indices are the axes that do not reduce, in order.
    axes
        All loops.
    value
        The element; for a reduction the term.
    combine
        ``add``, ``mul``, ``max`` or ``min`` over the reduction axes; empty without any.
    initial
        Initial value of a reduction.
    """

    name: str
    writes: str
    dtype: str
    axes: tuple[Axis, ...]
    value: Node
    combine: str = ""
    initial: Node | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Tensors that are read, each once, in order."""
        nodes = [*walk(self.value), *(walk(self.initial) if self.initial is not None else ())]
        return tuple(dict.fromkeys(node.buffer for node in nodes if isinstance(node, Load)))

    @property
    def kept(self) -> tuple[Axis, ...]:
        """Axes of the tensor written."""
        return tuple(axis for axis in self.axes if not axis.reduces)

    @property
    def reduced(self) -> tuple[Axis, ...]:
        """Axes that are reduced over."""
        return tuple(axis for axis in self.axes if axis.reduces)

    @property
    def text(self) -> str:
        """The step as a line: ``tanh[i, j] = tanh(input_0[i, j])``."""
        value = text(self.value)
        if self.combine:
            over = ", ".join(f"{axis.name} < {text(axis.extent)}" for axis in self.reduced)
            word = {"add": "sum", "mul": "product"}.get(self.combine, self.combine)
            value = f"{word} over {over} of {value}"
        return f"{self.writes}[{', '.join(axis.name for axis in self.kept)}] = {value}"


@dataclass(frozen=True)
class Steps:
    """An operator's steps, in order.

    Attributes
    ----------
    operator
        Its name.
    inputs, outputs
        Names of the tensors read and written.
    tensors
        All tensors by name.
    steps
        The steps; every output is written by one of them.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: dict[str, Tensor]
    steps: tuple[Step, ...]

    def maker(self, tensor: str) -> int | None:
        """Position of the step that writes `tensor`; None for an input."""
        for position, step in enumerate(self.steps):
            if step.writes == tensor:
                return position
        return None

    def needed(self, position: int) -> tuple[int, ...]:
        """The steps that step `position` depends on, itself included, in order."""
        found = {position}
        pending = [position]
        while pending:
            for tensor in self.steps[pending.pop()].reads:
                maker = self.maker(tensor)
                if maker is not None and maker not in found:
                    found.add(maker)
                    pending.append(maker)
        return tuple(sorted(found))


def inlined(value: Node, producer: Step) -> Node:
    """`value` with `producer` inlined at every read of its tensor."""

    def written_in(node: Node) -> Node:
        if not isinstance(node, Load) or node.buffer != producer.writes:
            return node
        places = dict(zip((axis.name for axis in producer.kept), node.indices, strict=True))

        def moved(inner: Node) -> Node:
            return places.get(inner.name, inner) if isinstance(inner, Variable) else inner

        return rewrite(producer.value, moved)

    return rewrite(value, written_in)


def extent_of(node: Node, symbols: Mapping[str, int]) -> int:
    """The value of an integer expression over shape symbols."""
    if isinstance(node, Constant):
        return int(node.value)
    if isinstance(node, Operation):
        operands = [extent_of(operand, symbols) for operand in node.operands]
        return _EXTENTS.get(node.name, _first)(*operands)
    return symbols[getattr(node, "name", "")]


def _first(*operands: int) -> int:
    """A cast, which changes no extent."""
    return operands[0]


_EXTENTS: Final[dict[str, Callable[..., int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": min,
    "max": max,
}
