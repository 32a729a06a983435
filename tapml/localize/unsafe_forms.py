"""Forms of a function that are equal on paper and overflow, cancel or divide by zero in few bits.

The paper's case is a ``tanh`` through exponentials, NaN beyond 45 (section IV-E): Inf / Inf.
Evaluated in the step's own dtype, a form shows where it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from tapml.localize.expressions import Constant, Node, Operation, occurrences, rewrite, text
from tapml.localize.mistakes import Mistake
from tapml.localize.steps import Step

Form: TypeAlias = tuple[str, str, Callable[..., Node]]


def of_unsafe_forms(step: Step) -> Iterator[Mistake]:
    """The step with one function computed in a form that is not safe everywhere."""
    for node, change in occurrences(step.value):
        if not isinstance(node, Operation):
            continue
        for name, form, build in _FORMS:
            if name == node.name and (name != "div" or not isinstance(node.operands[0], Constant)):
                value = change(build(*node.operands))
                words = f"computes {text(node)} as {form} in {node.dtype}"
                yield Mistake(words, replace(step, value=value), own_precision=True)


def as_compiled(step: Step) -> Step:
    """The step with what code generators write out (``sigmoid``) written out."""
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
