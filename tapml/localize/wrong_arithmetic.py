"""Mistakes of arithmetic in one step: another operation, a lost operand, a constant, a dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tapml.localize.expressions import Constant, Load, Node, Operation, occurrences, text
from tapml.localize.mistakes import Change, Mistake
from tapml.localize.steps import Step
from tapml_targets.dtype import dtype as lookup

_OTHERS: Final = {
    "add": ("sub",), "sub": ("add",), "mul": ("div", "add"), "div": ("mul",),
    "max": ("min",), "min": ("max",), "exp": ("exp2",), "exp2": ("exp",), "log": ("log2", "log10"),
    "log2": ("log",), "sqrt": ("rsqrt",), "rsqrt": ("sqrt",), "sin": ("cos",), "cos": ("sin",),
    "lt": ("le", "gt"), "le": ("lt", "ge"), "gt": ("ge", "lt"), "ge": ("gt", "le"),
    "eq": ("ne",), "ne": ("eq",), "floor": ("trunc", "ceil"), "ceil": ("floor", "trunc"),
    "trunc": ("floor",), "round": ("trunc", "nearbyint"), "nearbyint": ("trunc", "round"),
    "floordiv": ("floormod",), "floormod": ("floordiv",),
}  # fmt: skip
_TWO_SIDED: Final = ("add", "sub", "mul", "div", "max", "min")
_ORDERED: Final = ("sub", "div", "pow", "floordiv", "floormod", "atan2", "fmod")
_LEFT_OUT: Final = ("exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "fabs")
_NARROWER: Final = {
    "float64": ("float32",),
    "float32": ("bfloat16", "float16"),
    "float16": ("bfloat16",),
}
# What a byte or a short is off by when its sign is lost or made up.
_SIGNS: Final = {"int8": 256.0, "uint8": 256.0, "int16": 65536.0, "uint16": 65536.0}


def of_operations(step: Step) -> Iterator[Mistake]:
    """Another operation than the right one, or one operand of it lost."""
    for node, change in occurrences(step.value):
        if not isinstance(node, Operation):
            continue
        shown = text(node)
        if node.name in _TWO_SIDED:
            for kept, lost in (node.operands, node.operands[::-1]):
                yield Mistake(f"leaves out {text(lost)} in {shown}", _with(step, change(kept)))
        if node.name in _ORDERED:
            value = change(replace(node, operands=node.operands[::-1]))
            yield Mistake(f"exchanges the operands of {shown}", _with(step, value))
        for name in _OTHERS.get(node.name, ()):
            value = change(replace(node, name=name))
            yield Mistake(f"computes {name} in place of {node.name} in {shown}", _with(step, value))
        if node.name in _LEFT_OUT:
            value = change(node.operands[0])
            yield Mistake(f"leaves out {node.name} in {shown}", _with(step, value))
        if node.name == "select":
            condition, chosen, other = node.operands
            for words, replacement in (
                ("the other way round", replace(node, operands=(condition, other, chosen))),
                ("as if its condition always held", chosen),
                ("as if its condition never held", other),
            ):
                value = change(replacement)
                yield Mistake(f"takes {text(condition)} {words}", _with(step, value))
        if node.name == "cast":
            yield from _of_cast(step, node, change)


def _of_cast(step: Step, node: Operation, change: Change) -> Iterator[Mistake]:
    operand = node.operands[0]
    offset = _SIGNS.get(operand.dtype)
    if offset is None or not lookup(node.dtype).is_float:
        return
    zero = Constant(0.0, node.dtype)
    signed = operand.dtype.startswith("i")
    if signed:
        wrong = Operation("lt", (node, zero), "bool")
        moved = Operation("add", (node, Constant(offset, node.dtype)), node.dtype)
    else:
        wrong = Operation("ge", (node, Constant(offset / 2, node.dtype)), "bool")
        moved = Operation("sub", (node, Constant(offset, node.dtype)), node.dtype)
    value = change(Operation("select", (wrong, moved, node), node.dtype))
    words = "unsigned" if signed else "signed"
    yield Mistake(
        f"takes the {operand.dtype} numbers {text(operand)} as {words}", _with(step, value)
    )


def of_constants(step: Step) -> Iterator[Mistake]:
    """A constant that is another one."""
    for node, change in occurrences(step.value):
        if not isinstance(node, Constant):
            continue
        others: tuple[float | int, ...]
        if lookup(node.dtype).is_float:
            others = (-node.value, 0.0, 2.0 * node.value, 0.5 * node.value, 1.0)
        elif node.dtype == "bool":
            others = (not node.value,)
        else:
            others = (node.value + 1, node.value - 1, 0)
        for other in others:
            value = change(Constant(other, node.dtype))
            words = f"takes {float(other):.6g} for the constant {float(node.value):.6g}"
            yield Mistake(words, _with(step, value))


def of_results(step: Step) -> Iterator[Mistake]:
    """A result of the wrong sign, none at all, or one held in fewer bits."""
    floating = lookup(step.dtype).is_float
    zero = Constant(0.0 if floating else 0, step.dtype)
    nothing = replace(step, axes=step.kept, value=zero, combine="", initial=None)
    yield Mistake("gives zero", nothing, general=True)
    if not floating:
        return
    minus = Operation("sub", (zero, step.value), step.dtype)
    yield Mistake("gives the wrong sign", replace(step, value=minus), general=True)
    for narrow in _NARROWER.get(step.dtype, ()):
        if step.combine == "add":
            start = Operation("cast", (step.initial or zero,), narrow)
            held = replace(step, dtype=narrow, initial=start)
            yield Mistake(f"adds up in {narrow}", held, own_precision=True)
        rounded = Operation("cast", (Operation("cast", (step.value,), narrow),), step.dtype)
        words = "rounds every term" if step.combine else "rounds its result"
        yield Mistake(f"{words} to {narrow}", _with(step, rounded), own_precision=True)
    for load in _loaded(step.value):
        for narrow in _NARROWER.get(load.dtype, ()):
            yield Mistake(
                f"rounds {load.buffer} to {narrow}",
                _with(step, _narrowed(step.value, load.buffer, narrow)),
                own_precision=True,
            )


def _loaded(value: Node) -> list[Load]:
    loads = {node.buffer: node for node, _ in occurrences(value) if isinstance(node, Load)}
    return list(loads.values())


def _narrowed(value: Node, buffer: str, dtype: str) -> Node:
    for node, change in occurrences(value):
        if isinstance(node, Load) and node.buffer == buffer:
            narrow = Operation("cast", (Operation("cast", (node,), dtype),), node.dtype)
            return change(narrow)
    return value


def _with(step: Step, value: Node) -> Step:
    return replace(step, value=value)
