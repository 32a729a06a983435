"""The elements that an element depends on, and the one with the largest weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tapml.diagnosis.evaluation import Array, Evaluation
from tapml.diagnosis.steps import Load, Node, Operation, Step, walk

_DEEPEST: Final = 200
InputElement: TypeAlias = tuple[str, int]
"""An input and a flat index into it."""


def cone_of(evaluation: Evaluation, tensor: str, flat: int) -> dict[str, NDArray[np.int64]]:
    """Flat indices of all elements that one element depends on, by tensor, itself included.

    Raises
    ------
    LimitExceededError
        If there are too many to follow.
    """
    steps = evaluation.steps
    cone: dict[str, NDArray[np.int64]] = {tensor: np.array([flat], np.int64)}
    for step in reversed(steps.steps):
        if step.writes not in cone:
            continue
        places = evaluation.grid(step, cone[step.writes])
        for node in walk(step.value):
            if isinstance(node, Load):
                found = np.unique(evaluation.indices(node, places))
                known = cone.get(node.buffer)
                cone[node.buffer] = found if known is None else np.union1d(known, found)
    return cone


def heaviest_input(
    evaluation: Evaluation, node: Node, places: Mapping[str, Array]
) -> InputElement | None:
    """The input element with the largest weight in `node`, following the largest operand down.

    Returns
    -------
    tuple or None
        Input and flat index; None if no input contributes.
    """
    return _Descent(evaluation).into(node, places, 0)


def heaviest_term(evaluation: Evaluation, step: Step, flat: int) -> dict[str, Array]:
    """The axes of a step at one element; for a reduction at its largest term, NaN and Inf first."""
    places = evaluation.places(step, flat)
    grid = places[""].shape
    if not step.reduced:
        return places
    terms = np.broadcast_to(evaluation.node(step.value, places), grid).reshape(-1)
    with np.errstate(all="ignore"):
        weight = terms if step.combine == "max" else np.abs(terms)
        weight = np.where(np.isfinite(terms), weight, np.inf)
    spot = np.unravel_index(int(np.argmax(weight)), grid)
    return {
        name: np.broadcast_to(values, grid)[tuple(spot)].reshape((1,) * len(grid))
        for name, values in places.items()
    }


class _Descent:
    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation

    def into(self, node: Node, places: Mapping[str, Array], depth: int) -> InputElement | None:
        """Descend the operands, the largest contribution first."""
        if depth > _DEEPEST:
            return None
        if isinstance(node, Load):
            return self._load(node, places, depth)
        if not isinstance(node, Operation):
            return None
        for operand in self._by_weight(node, places):
            found = self.into(operand, places, depth + 1)
            if found is not None:
                return found
        return None

    def _load(self, load: Load, places: Mapping[str, Array], depth: int) -> InputElement | None:
        flat = int(np.asarray(self._evaluation.indices(load, places)).reshape(-1)[0])
        steps = self._evaluation.steps
        maker = steps.maker(load.buffer)
        if maker is None:
            return load.buffer, flat
        step = steps.steps[maker]
        inner = heaviest_term(self._evaluation, step, flat)
        return self.into(step.value, inner, depth + 1)

    def _by_weight(self, node: Operation, places: Mapping[str, Array]) -> list[Node]:
        values = [self._value(operand, places) for operand in node.operands]
        order = list(range(len(values)))
        if node.name == "select":
            order = [1, 2, 0] if values[0] else [2, 1, 0]
        elif node.name == "div":
            order = [1, 0] if abs(values[1]) < abs(values[0]) * 1e-6 or not values[1] else [0, 1]
        elif node.name in ("max", "min") and values[0] != values[1]:
            order.sort(key=lambda i: values[i], reverse=node.name == "max")
        elif node.name == "mul" and 0.0 in values:
            order.sort(key=lambda i: values[i] != 0.0)
        else:
            order.sort(key=lambda i: -_weight(values[i]))
        return [node.operands[position] for position in order]

    def _value(self, node: Node, places: Mapping[str, Array]) -> float:
        with np.errstate(all="ignore"):
            value: Any = np.asarray(self._evaluation.node(node, places)).reshape(-1)[0]
        return float(value)


def _weight(value: float) -> float:
    return abs(value) if np.isfinite(value) else np.inf
