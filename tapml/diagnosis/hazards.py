"""Hazards of arithmetic: overflows, divisions by zero, logarithms of negatives.

Each hazard is a condition on the operands of one operation, evaluated with their float64 values.
Some break in any arithmetic of that dtype; some only if a function is computed in an unsafe form
(``tanh`` through exponentials); some if rounding crosses a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.diagnosis.evaluation import Array, Evaluation
from tapml.diagnosis.steps import Node, Operation, Step, text
from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import float_format

CERTAIN, UNSAFE, NEAR = 0, 1, 2
# A difference of this many ulp of its operands may round to zero or to the other sign.
_CANCELLED: Final = 64.0
_OF_POSITIVES: Final = ("sqrt", "rsqrt", "log", "log2", "log10")


@dataclass(frozen=True)
class Event:
    """A hazard that occurs.

    Attributes
    ----------
    rank
        ``CERTAIN`` in any arithmetic of the dtype, ``UNSAFE`` in an unsafe form, ``NEAR`` a bound.
    hazard
        Its name.
    node
        The operation.
    operand
        Which operand crosses the bound; -1 for the result.
    argument
        The value that crosses it.
    places
        The step's axes there.
    words
        Description of the hazard.
    """

    rank: int
    hazard: str
    node: Node
    operand: int
    argument: float
    places: dict[str, Array]
    words: str


def events_in(evaluation: Evaluation, step: Step, flat: NDArray[np.int64]) -> Iterator[Event]:
    """The hazards at the elements `flat` of a step, operands before results."""
    for element in flat:
        places = evaluation.places(step, int(element))
        grid = places[""].shape
        computed: dict[int, tuple[Array, ...]] = {}
        for node, operands, result in _values(evaluation, step.value, places):
            wide = [np.broadcast_to(operand, grid) for operand in operands]
            whole = np.broadcast_to(result, grid)
            computed[id(node)] = (*wide, whole)
            yield from _events(node, wide, whole, places)
            yield from _near_negative(node, places, computed)
        yield from _events_of_sum(evaluation, step, places)


def _values(
    evaluation: Evaluation, node: Node, places: Mapping[str, Array]
) -> list[tuple[Operation, list[Array], Array]]:
    """Every operation of a value with its operands and its result, operands first."""
    found: list[tuple[Operation, list[Array], Array]] = []

    def visit(inner: Node) -> Array:
        if not isinstance(inner, Operation):
            return evaluation.node(inner, places)
        operands = [visit(operand) for operand in inner.operands]
        result = evaluation.apply(inner, operands)
        found.append((inner, operands, result))
        return result

    visit(node)
    return found


@dataclass(frozen=True)
class _Rule:
    """A named condition on operands. `operand` is the one that crosses the bound."""

    rank: int
    hazard: str
    operand: int
    holds: Callable[..., Any]
    words: str


def _exponent_limit(dtype: str) -> float:
    return math.log(float_format(dtype).max_finite)


def _rules(node: Operation) -> Sequence[_Rule]:
    """The hazards of an operation in this dtype."""
    dtype = node.operands[0].dtype
    if not lookup(dtype).is_float:
        return ()
    layout = float_format(dtype)
    limit = _exponent_limit(dtype)
    smallest = layout.smallest_normal
    shown = f"{limit:.4g}"
    by_name: dict[str, tuple[_Rule, ...]] = {
        "exp": (
            _Rule(CERTAIN, "exp overflow", 0, lambda x: x > limit,
                  f"exp of {{0:.6g}} overflows {dtype}, whose limit is {shown}"),
        ),
        "exp2": (
            _Rule(CERTAIN, "exp overflow", 0, lambda x: x > limit / math.log(2.0),
                  f"exp2 of {{0:.6g}} overflows {dtype}"),
        ),
        "tanh": (
            _Rule(UNSAFE, "tanh overflow", 0, lambda x: np.abs(2.0 * x) > limit,
                  f"tanh of {{0:.6g}}: through exp(2 x) it overflows {dtype} beyond "
                  f"{limit / 2:.4g}, and Inf / Inf is NaN"),
        ),
        "sigmoid": (
            _Rule(UNSAFE, "sigmoid overflow", 0, lambda x: np.abs(x) > limit,
                  f"sigmoid of {{0:.6g}}: its exp overflows {dtype} beyond {shown}"),
        ),
        "log": _logarithm_rules("log", 0.0),
        "log2": _logarithm_rules("log2", 0.0),
        "log10": _logarithm_rules("log10", 0.0),
        "log1p": _logarithm_rules("log1p", -1.0),
        "sqrt": (
            _Rule(CERTAIN, "sqrt of a negative", 0, lambda x: x < 0,
                  "sqrt of the negative {0:.6g} is NaN"),
        ),
        "rsqrt": (
            _Rule(CERTAIN, "rsqrt of a negative", 0, lambda x: x < 0,
                  "rsqrt of the negative {0:.6g} is NaN"),
            _Rule(CERTAIN, "rsqrt of zero", 0, lambda x: x == 0, "rsqrt of zero is Inf"),
        ),
        "div": (
            _Rule(CERTAIN, "0/0", 1, lambda x, y: (x == 0) & (y == 0), "0 / 0 is NaN"),
            _Rule(CERTAIN, "x/0", 1, lambda x, y: (x != 0) & (y == 0), "a division by zero"),
            _Rule(CERTAIN, "Inf/Inf", 1, lambda x, y: np.isinf(x) & np.isinf(y),
                  "Inf / Inf is NaN"),
            _Rule(UNSAFE, "division by a subnormal number", 1,
                  lambda x, y: (y != 0) & (np.abs(y) < smallest),
                  f"the divisor {{1:.6g}} is subnormal in {dtype}: zero where those are flushed, "
                  "and its reciprocal overflows"),
        ),
        "pow": (
            _Rule(UNSAFE, "pow of a negative", 0, lambda x, y: x < 0,
                  "pow of the negative {0:.6g}: through exp(y log(x)) it is NaN"),
            _Rule(UNSAFE, "pow of zero", 0, lambda x, y: x == 0,
                  "pow of zero: through exp(y log(x)) it meets log(0)"),
        ),
        "mul": (
            _Rule(CERTAIN, "0 * Inf", 0, lambda x, y: ((x == 0) & np.isinf(y))
                  | (np.isinf(x) & (y == 0)), "0 * Inf is NaN"),
        ),
        "sub": (
            _Rule(CERTAIN, "Inf - Inf", 0, lambda x, y: np.isinf(x) & (x == y),
                  "Inf - Inf is NaN"),
        ),
        "add": (
            _Rule(CERTAIN, "Inf - Inf", 0, lambda x, y: np.isinf(x) & (x == -y),
                  "Inf - Inf is NaN"),
        ),
        "acos": _inverse_rules("acos"),
        "asin": _inverse_rules("asin"),
        "cast": _cast_rules(node),
    }  # fmt: skip
    return by_name.get(node.name, ())


def _logarithm_rules(name: str, bound: float) -> tuple[_Rule, ...]:
    return (
        _Rule(
            CERTAIN, "log of a negative", 0, lambda x: x < bound,
            f"{name} of the negative {{0:.6g}} is NaN" if bound == 0
            else f"{name} of {{0:.6g}}, below -1, is NaN",
        ),
        _Rule(CERTAIN, "log of zero", 0, lambda x: x == bound, f"{name} of {bound:g} is -Inf"),
    )  # fmt: skip


def _inverse_rules(name: str) -> tuple[_Rule, ...]:
    words = f"{name} of {{0:.6g}}, beyond one, is NaN"
    return (_Rule(CERTAIN, f"{name} beyond one", 0, lambda x: np.abs(x) > 1, words),)


def _cast_rules(node: Operation) -> tuple[_Rule, ...]:
    target = lookup(node.dtype)
    if target.is_float:
        return ()
    largest = 2.0 ** (8 * target.itemsize - (0 if node.dtype.startswith("u") else 1))
    words = f"{{0:.6g}} is no {node.dtype}"
    return (_Rule(CERTAIN, "invalid conversion", 0, lambda x: ~(np.abs(x) < largest), words),)


def _events(
    node: Operation, operands: list[Array], result: Array, places: Mapping[str, Array]
) -> Iterator[Event]:
    for rule in _rules(node):
        with np.errstate(all="ignore"):
            holds = np.broadcast_to(rule.holds(*operands), result.shape)
        if holds.any():
            spot = np.unravel_index(int(np.argmax(holds)), holds.shape)
            values = [float(operand[spot]) for operand in operands]
            shown = f"{rule.words.format(*values)} ({text(node)})"
            argument = values[rule.operand]
            where = _at(places, spot)
            yield Event(rule.rank, rule.hazard, node, rule.operand, argument, where, shown)
    yield from _overflow(node, operands, result, places)


def _overflow(
    node: Operation, operands: list[Array], result: Array, places: Mapping[str, Array]
) -> Iterator[Event]:
    if node.name == "exp" or not lookup(node.dtype).is_float:
        return
    with np.errstate(all="ignore"):
        finite = np.all([np.isfinite(operand) for operand in operands], axis=0)
        holds = finite & (np.abs(result) > float_format(node.dtype).max_finite)
    if holds.any():
        spot = np.unravel_index(int(np.argmax(holds)), holds.shape)
        value = float(result[spot])
        words = f"{text(node)} is {value:.6g}, which overflows {node.dtype}"
        hazard = f"overflow of {_article(node.name)}"
        yield Event(CERTAIN, hazard, node, -1, value, _at(places, spot), words)


def _article(name: str) -> str:
    words = {"mul": "a product", "add": "a sum", "sub": "a difference", "div": "a quotient"}
    return words.get(name, name)


def _near_negative(
    node: Operation, places: Mapping[str, Array], computed: Mapping[int, tuple[Array, ...]]
) -> Iterator[Event]:
    """A root or logarithm of a sum or difference that may round to a negative number."""
    argument = node.operands[0]
    if node.name not in _OF_POSITIVES or not isinstance(argument, Operation):
        return
    if argument.name not in ("add", "sub") or not lookup(argument.dtype).is_float:
        return
    left, right, value = computed[id(argument)]
    near = float_format(argument.dtype).epsilon * _CANCELLED * np.maximum(abs(left), abs(right))
    holds = (value >= 0) & (value < near)
    if holds.any():
        spot = np.unravel_index(int(np.argmax(holds)), holds.shape)
        number = float(value[spot])
        words = (
            f"{node.name} of {number:.6g} ({text(node)}): it is the difference of much larger "
            f"numbers, which rounding in {argument.dtype} may make zero or negative"
        )
        hazard = f"{node.name} of what rounds to a negative"
        yield Event(NEAR, hazard, node, 0, number, _at(places, spot), words)


def _events_of_sum(
    evaluation: Evaluation, step: Step, places: Mapping[str, Array]
) -> Iterator[Event]:
    if step.combine != "add" or not lookup(step.dtype).is_float:
        return
    grid = places[""].shape
    terms = np.broadcast_to(evaluation.node(step.value, places), grid).reshape(-1)
    with np.errstate(all="ignore"):
        partial = np.cumsum(terms.astype(np.float64))
    holds = np.isfinite(terms) & (np.abs(partial) > float_format(step.dtype).max_finite)
    if holds.any():
        spot = np.unravel_index(int(np.argmax(holds)), grid)
        value = float(partial[int(np.argmax(holds))])
        words = f"the sum of {text(step.value)} reaches {value:.6g}, which overflows {step.dtype}"
        where = _at(places, spot)
        yield Event(CERTAIN, "overflow of a sum", step.value, -1, value, where, words)


def _at(places: Mapping[str, Array], spot: Sequence[Any]) -> dict[str, Array]:
    """The step's axes at one point of its grid."""
    shape = places[""].shape
    return {
        name: np.broadcast_to(values, shape)[tuple(spot)].reshape((1,) * len(shape))
        for name, values in places.items()
    }
