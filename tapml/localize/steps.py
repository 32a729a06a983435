"""An operator as a sequence of steps, each of which computes one tensor from others.

The unscheduled PrimFunc of a fused operator *is* its body step by step: one block of loops for each
tensor on the way. Reading it, rather than the Relax functions that were fused, works for operators
that were never fused but have several steps all the same (softmax, layer norm, GELU).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tapml.localize.expressions import (
    Constant,
    Load,
    Node,
    Operation,
    Variable,
    rewrite,
    text,
    walk,
)


@dataclass(frozen=True)
class Tensor:
    """A tensor that a step reads or writes; extents may hold shape symbols."""

    name: str
    shape: tuple[Node, ...]
    dtype: str


@dataclass(frozen=True)
class Axis:
    """A loop from 0 up to `extent`; `reduces` where it is summed over."""

    name: str
    extent: Node
    reduces: bool


@dataclass(frozen=True)
class Step:
    """One tensor and how each of its elements is computed.

    Attributes
    ----------
    name
        What people call it: the body's operator, or what it computes.
    writes
        The tensor; its indices are the axes that do not reduce, in order.
    axes
        All loops.
    value
        The element; for a reduction the term.
    combine
        ``add``, ``mul``, ``max`` or ``min`` over the axes that reduce; empty where none does.
    initial
        What a reduction starts from.
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
        Names of what it reads and of what it writes.
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
        """The steps that step `position` rests on, itself included, in order."""
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
    """`value` with what `producer` computes written in place of every read of its tensor."""

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
