"""Standard mistakes of kernels, each made in one step of an operator.

What a wrong kernel computes is seldom arbitrary: an index is off by one, a term is left out, two
operands are exchanged. Each mistake here is the step with that done to it, and a sentence. Those of
addressing and of sums are in this module, those of arithmetic in
:mod:`tapml.localize.wrong_arithmetic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from tapml.localize.expressions import (
    Constant,
    Load,
    Node,
    Operation,
    Variable,
    occurrences,
    rewrite,
    text,
)
from tapml.localize.steps import Step, Steps
from tapml_targets.dtype import dtype as lookup

Change: TypeAlias = Callable[[Node], Node]

_BLOCKS: Final = (2, 4, 8, 16, 32, 64, 128, 256)
_ONE: Final = Constant(1, "int64")
_ZERO: Final = Constant(0, "int64")


@dataclass(frozen=True)
class Mistake:
    """A step with one mistake.

    Attributes
    ----------
    words
        What it does wrong, to follow the step's name.
    step
        The step as it would then be.
    own_precision
        Whether it only shows in the step's own dtype: an overflow, a lost digit.
    general
        Whether it says little: of two mistakes that explain as much the other is named.
    """

    words: str
    step: Step
    own_precision: bool = False
    general: bool = False


def of_terms(step: Step) -> Iterator[Mistake]:
    """A reduction that leaves terms out or starts from the wrong number."""
    neutral = step.initial
    if neutral is None:
        return
    word = {"add": "sum", "mul": "product"}.get(step.combine, step.combine)
    for axis in step.reduced:
        last = Operation("sub", (axis.extent, _ONE), "int64")
        places: list[tuple[str, str, Node]] = [
            ("leaves out the first term", "gt", _ZERO),
            ("leaves out the last term", "lt", last),
        ]
        for block in _BLOCKS:
            size = Constant(block, "int64")
            if isinstance(axis.extent, Constant) and axis.extent.value <= block:
                break
            full = Operation("floordiv", (axis.extent, size), "int64")
            end = Operation("mul", (full, size), "int64")
            places.append(
                (f"leaves out what lies beyond the last full block of {block}", "lt", end)
            )
            places.append((f"takes the first {block} terms only", "lt", size))
        variable = Variable(axis.name, "int64")
        kept = [
            (words, Operation(comparison, (variable, bound), "bool"))
            for words, comparison, bound in places
        ]
        kept += [
            # A level of the tree in which threads add up what they have.
            (f"leaves out the second half of every {block} terms", _in_first_half(variable, block))
            for block in _BLOCKS
        ]
        for words, condition in kept:
            value = Operation("select", (condition, step.value, neutral), step.dtype)
            yield Mistake(f"{words} of its {word} over {axis.name}", replace(step, value=value))
    for wrong in (0, 1):
        start = Constant(float(wrong) if lookup(step.dtype).is_float else wrong, step.dtype)
        yield Mistake(f"starts its {word} from {wrong}", replace(step, initial=start))


def _in_first_half(variable: Variable, block: int) -> Operation:
    place = Operation("floormod", (variable, Constant(block, "int64")), "int64")
    return Operation("lt", (place, Constant(block // 2, "int64")), "bool")


def of_addresses(steps: Steps, step: Step) -> Iterator[Mistake]:
    """An operand read at another element."""
    for load, change in _loads(step):
        name, shape = text(load), steps.tensors[load.buffer].shape
        for axis, index in enumerate(load.indices):
            if shape[axis] == _ONE:
                continue
            along = f"along axis {axis}"
            for words, other in (
                (f"shifted by one element {along}", _index("add", index)),
                (f"shifted back by one element {along}", _index("sub", index)),
                (f"with the lowest bit of its index {along} turned", _index("bitwise_xor", index)),
                (f"at index 0 {along} throughout", _ZERO),
            ):
                indices = (*load.indices[:axis], other, *load.indices[axis + 1 :])
                value = change(replace(load, indices=indices))
                yield Mistake(f"reads {name} {words}", replace(step, value=value))
        for direction, by in (("further", "add"), ("back", "sub")):
            if len(shape) > 1:
                value = change(replace(load, indices=_in_memory(load.indices, shape, by)))
                words = f"reads {name} one element {direction} in memory"
                yield Mistake(words, replace(step, value=value))
        for first, second in _equal_axes(shape):
            indices = _exchanged(load.indices, first, second)
            value = change(replace(load, indices=indices))
            words = f"reads {name} transposed (axes {first} and {second} exchanged)"
            yield Mistake(words, replace(step, value=value))


def of_operands(steps: Steps, step: Step) -> Iterator[Mistake]:
    """One tensor read in place of another, or two in each other's place."""
    for position, tensor in enumerate(step.reads):
        for other in dict.fromkeys((*step.reads[position + 1 :], *steps.inputs)):
            mine, its = steps.tensors[tensor], steps.tensors[other]
            if other == tensor or (mine.shape, mine.dtype) != (its.shape, its.dtype):
                continue
            if other in step.reads[position + 1 :]:
                yield Mistake(
                    f"reads {tensor} and {other} in each other's place",
                    replace(step, value=_renamed(step.value, {tensor: other, other: tensor})),
                )
            yield Mistake(
                f"reads {other} in place of {tensor}",
                replace(step, value=_renamed(step.value, {tensor: other})),
            )


def _loads(step: Step) -> Iterator[tuple[Load, Change]]:
    for node, change in occurrences(step.value):
        if isinstance(node, Load):
            yield node, change


def _index(name: str, index: Node) -> Node:
    return Operation(name, (index, _ONE), "int64")


def _in_memory(indices: tuple[Node, ...], shape: tuple[Node, ...], by: str) -> tuple[Node, ...]:
    """Indices of the element after or before, rows running on into each other."""
    flat: Node = _ZERO
    for index, extent in zip(indices, shape, strict=True):
        flat = Operation("add", (Operation("mul", (flat, extent), "int64"), index), "int64")
    rest = _index(by, flat)
    found: list[Node] = []
    for extent in reversed(shape[1:]):
        found.append(Operation("floormod", (rest, extent), "int64"))
        rest = Operation("floordiv", (rest, extent), "int64")
    return (rest, *reversed(found))


def _equal_axes(shape: tuple[Node, ...]) -> Iterator[tuple[int, int]]:
    for first, extent in enumerate(shape):
        for second in range(first + 1, len(shape)):
            if extent == shape[second] and extent != _ONE:
                yield first, second


def _exchanged(indices: tuple[Node, ...], first: int, second: int) -> tuple[Node, ...]:
    moved = list(indices)
    moved[first], moved[second] = moved[second], moved[first]
    return tuple(moved)


def _renamed(value: Node, names: dict[str, str]) -> Node:
    return rewrite(value, partial(_with_buffer, names))


def _with_buffer(names: dict[str, str], node: Node) -> Node:
    if isinstance(node, Load) and node.buffer in names:
        return replace(node, buffer=names[node.buffer])
    return node
