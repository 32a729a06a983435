"""What one element of a step is, as a small tree: read, rewritten and shown without TVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias


@dataclass(frozen=True)
class Constant:
    """A number of the kernel's own."""

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
    """The nodes that `node` is made of."""
    if isinstance(node, Load):
        return node.indices
    return node.operands if isinstance(node, Operation) else ()


def with_children(node: Node, nodes: tuple[Node, ...]) -> Node:
    """`node` made of other nodes."""
    if isinstance(node, Load):
        return replace(node, indices=nodes)
    return replace(node, operands=nodes) if isinstance(node, Operation) else node


def walk(node: Node) -> Iterator[Node]:
    """`node` and everything below it, operands before what is made of them."""
    for child in children(node):
        yield from walk(child)
    yield node


def rewrite(node: Node, change: Callable[[Node], Node]) -> Node:
    """`node` with `change` applied to every node, operands first."""
    changed = tuple(rewrite(child, change) for child in children(node))
    return change(with_children(node, changed) if changed != children(node) else node)


def occurrences(node: Node) -> Iterator[tuple[Node, Callable[[Node], Node]]]:
    """Every node that is part of the value, with what replaces this one occurrence of it.

    Indices of loads are part of an address, not of a value, and left out.
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
    """`node` as a person would write it."""
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
