"""Standard mistakes of kernels, each made in one step of an operator.

The result of a wrong kernel is seldom arbitrary: an index is off by one, a term is left out, two
operands are exchanged. Each mistake here is a changed step and a sentence: mistakes of sums, of
addressing, of arithmetic, unsafe forms of a function, and numbers fitted to the target's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from tapml.diagnosis.steps import (
    Constant,
    Load,
    Node,
    Operation,
    Step,
    Steps,
    Variable,
    occurrences,
    rewrite,
    text,
)
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
        Predicate that follows the step's name.
    step
        The step with the mistake.
    own_precision
        Whether it shows only in the step's own dtype: an overflow, a lost digit.
    general
        Whether it is unspecific: of two equally good mistakes the other is named.
    function
        The function computed in an unsafe form; empty for other mistakes.
    """

    words: str
    step: Step
    own_precision: bool = False
    general: bool = False
    function: str = ""


def of_terms(step: Step) -> Iterator[Mistake]:
    """A reduction that omits terms or starts from the wrong number."""
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
            # A level of the tree in which threads add up their partial sums.
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
    """One tensor read instead of another, or two exchanged."""
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
    """Indices of the next or previous element in memory, across rows."""
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
# The error of a byte or a short with the wrong signedness.
_SIGNS: Final = {"int8": 256.0, "uint8": 256.0, "int16": 65536.0, "uint16": 65536.0}


def of_operations(step: Step) -> Iterator[Mistake]:
    """A wrong operation, or a lost operand."""
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
    """A result with the wrong sign, missing, or held in fewer bits."""
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


# Mathematically equal forms that overflow, cancel or divide by zero in few bits, such as the
# paper's ``tanh`` through exponentials, NaN beyond 45 (section IV-E): Inf / Inf. They are evaluated
# in the step's own dtype, in which they break.
Form: TypeAlias = tuple[str, str, Callable[..., Node]]


def of_unsafe_forms(step: Step) -> Iterator[Mistake]:
    """The step with one function computed in an unsafe form."""
    for node, change in occurrences(step.value):
        if not isinstance(node, Operation):
            continue
        for name, form, build in _FORMS:
            if name == node.name and (name != "div" or not isinstance(node.operands[0], Constant)):
                value = change(build(*node.operands))
                words = f"computes {text(node)} as {form} in {node.dtype}"
                wrong = replace(step, value=value)
                yield Mistake(words, wrong, own_precision=True, function=name)


def as_compiled(step: Step) -> Step:
    """The step with functions expanded that code generators expand (``sigmoid``)."""
    return replace(step, value=rewrite(step.value, _written_out))


def _written_out(node: Node) -> Node:
    if isinstance(node, Operation) and node.name == "sigmoid":
        x = node.operands[0]
        power = _exp(_operation("sub", _number(0.0, x), x))
        return _quotient(_number(1.0, x), _operation("add", _number(1.0, x), power))
    return node


def _operation(name: str, *operands: Node) -> Node:
    return Operation(name, operands, operands[0].dtype)


def _number(value: float, like: Node) -> Node:
    return Constant(value, like.dtype)


def _exp(node: Node) -> Node:
    return _operation("exp", node)


def _quotient(above: Node, below: Node) -> Node:
    return _operation("div", above, below)


def _tanh_growing(x: Node) -> Node:
    power = _exp(_operation("mul", _number(2.0, x), x))
    one = _number(1.0, x)
    return _quotient(_operation("sub", power, one), _operation("add", power, one))


def _tanh_falling(x: Node) -> Node:
    power = _exp(_operation("mul", _number(-2.0, x), x))
    one = _number(1.0, x)
    return _quotient(_operation("sub", one, power), _operation("add", one, power))


def _tanh_two_sided(x: Node) -> Node:
    up, down = _exp(x), _exp(_operation("sub", _number(0.0, x), x))
    return _quotient(_operation("sub", up, down), _operation("add", up, down))


def _sigmoid_growing(x: Node) -> Node:
    power = _exp(x)
    return _quotient(power, _operation("add", _number(1.0, x), power))


def _pow_of_logarithm(x: Node, y: Node) -> Node:
    return _exp(_operation("mul", y, _operation("log", x)))


def _reciprocal(x: Node, y: Node) -> Node:
    return _operation("mul", x, _quotient(_number(1.0, y), y))


def _sqrt_of_rsqrt(x: Node) -> Node:
    return _operation("mul", x, _operation("rsqrt", x))


def _expm1(x: Node) -> Node:
    return _operation("sub", _exp(x), _number(1.0, x))


def _log1p(x: Node) -> Node:
    return _operation("log", _operation("add", _number(1.0, x), x))


_FORMS: Final[tuple[Form, ...]] = (
    ("tanh", "(exp(2 x) - 1) / (exp(2 x) + 1)", _tanh_growing),
    ("tanh", "(1 - exp(-2 x)) / (1 + exp(-2 x))", _tanh_falling),
    ("tanh", "(exp(x) - exp(-x)) / (exp(x) + exp(-x))", _tanh_two_sided),
    ("sigmoid", "exp(x) / (1 + exp(x))", _sigmoid_growing),
    ("pow", "exp(y log(x))", _pow_of_logarithm),
    ("div", "x * (1 / y)", _reciprocal),
    ("sqrt", "x * rsqrt(x)", _sqrt_of_rsqrt),
    ("expm1", "exp(x) - 1", _expm1),
    ("log1p", "log(1 + x)", _log1p),
)


Response: TypeAlias = Callable[[Step], float | None]
"""The element's value with this step; None if it cannot be computed."""

_ROUNDS: Final = 24
_CLOSE: Final = 1e-6


def fitted_mistakes(step: Step, response: Response, wanted: float) -> Iterator[Mistake]:
    """The step with one number fitted so that the element becomes `wanted`.

    Candidates are the step's constants, an extra factor and an extra term. One element suffices to
    propose a number; the other elements confirm it.
    """
    for node, change in occurrences(step.value):
        if isinstance(node, Constant) and lookup(node.dtype).is_float:
            make = partial(_with_constant, step, node, change)
            found = _solved(make, response, wanted, float(node.value))
            if found is not None:
                words = f"takes {found:.7g} for the constant {float(node.value):.7g}"
                yield Mistake(words, make(found))
    if not lookup(step.dtype).is_float or step.combine not in ("", "add"):
        return
    if step.combine:
        found = _solved(partial(_with_start, step), response, wanted, 0.0)
        if found is not None:
            yield Mistake(f"starts its sum from {found:.7g}", _with_start(step, found))
    for name, words, neutral in (("mul", "multiplies by {:.7g}", 1.0), ("add", "adds {:.7g}", 0.0)):
        if step.combine and name == "add":
            continue
        make = partial(_with_operand, step, name)
        found = _solved(make, response, wanted, neutral)
        if found is not None:
            yield Mistake(words.format(found) + " what it should give", make(found))


def _with_constant(step: Step, node: Constant, change: Change, number: float) -> Step:
    return replace(step, value=change(Constant(number, node.dtype)))


def _with_start(step: Step, number: float) -> Step:
    return replace(step, initial=Constant(number, step.dtype))


def _with_operand(step: Step, name: str, number: float) -> Step:
    operand = Constant(number, step.dtype)
    return replace(step, value=Operation(name, (step.value, operand), step.dtype))


def _solved(
    make: Callable[[float], Step], response: Response, wanted: float, start: float
) -> float | None:
    """The number that gives `wanted`, by the secant method from `start`."""
    numbers = [start, start * 1.25 + 0.125]
    errors: list[float] = []
    for number in numbers:
        given = response(make(number))
        if given is None or not math.isfinite(given):
            return None
        errors.append(given - wanted)
    for _ in range(_ROUNDS):
        if abs(errors[-1]) <= _CLOSE * abs(wanted):
            return float(np.float32(numbers[-1]))
        slope = errors[-1] - errors[-2]
        if slope == 0:
            return None
        number = numbers[-1] - errors[-1] * (numbers[-1] - numbers[-2]) / slope
        given = response(make(number)) if math.isfinite(number) else None
        if given is None or not math.isfinite(given):
            return None
        numbers, errors = [numbers[-1], number], [errors[-1], given - wanted]
    return None
