"""Which number in place of a constant gives what the target gave at one element.

One element is enough to ask; whether it is the answer, the others say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from tapml.localize.expressions import Constant, Operation, occurrences
from tapml.localize.mistakes import Change, Mistake
from tapml.localize.steps import Step
from tapml_targets.dtype import dtype as lookup

Response: TypeAlias = Callable[[Step], float | None]
"""What the element would be with the step made so; None where it cannot be computed."""

_ROUNDS: Final = 24
_CLOSE: Final = 1e-6


def fitted_mistakes(step: Step, response: Response, wanted: float) -> Iterator[Mistake]:
    """The step with one number in it that makes the element `wanted`.

    The constants of the step are tried, and a factor and a term that it should not have.
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
    """The number at which the element is `wanted`, by the secant method from `start`."""
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
