"""Carved tests with other inputs: drawn at random, or with the statistics of the carved ones.

Whole numbers stay as carved, since most are positions or rows that a kernel may only take from a
range. All floating-point inputs are replaced, weights too; expected outputs are the reference's on
the new inputs.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.twin_runs import Twin, run_operator
from tapml.plan.graph_plan import Operator
from tapml.validation.observed import ObservedTensor, ObservedTest
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError

Kind = Literal["random", "statistics"]
KINDS: Final[tuple[Kind, ...]] = ("random", "statistics")


def made_test(operator: Operator, test: CarvedCase, reference: Twin, kind: Kind) -> ObservedTest:
    """A test of the same shapes with made inputs.

    Parameters
    ----------
    reference
        The operator on the processor: arrays in parameter order, outputs filled in place.
    kind
        ``random``: from the standard normal distribution, as unit tests do. ``statistics``: from a
        normal distribution with mean and deviation of the carved tensor.

    Raises
    ------
    InputError
        If a floating-point input is not one of numpy's.
    """
    random = np.random.default_rng(int(hashlib.sha256(test.key.encode()).hexdigest()[:8], 16))
    read = [
        _drawn(array, kind, random) if lookup(parameter.dtype).is_float else array
        for array, parameter in zip(test.read_inputs(), operator.read, strict=True)
    ]
    outputs = [np.zeros_like(each) for each in test.read_outputs()]
    written = run_operator(operator, reference, read, outputs, test.symbols)
    digest = hashlib.sha256(f"{kind} {test.key}".encode()).hexdigest()
    tensors = [
        ObservedTensor(f"{digest} {index}", each.lifetime) for index, each in enumerate(test.inputs)
    ]
    return ObservedTest(
        f"{test.id} {kind}", test.operator, test.symbols, tensors, digest,
        tuple(read), tuple(written),
    )  # fmt: skip


def _drawn(carved: NDArray[Any], kind: Kind, random: np.random.Generator) -> NDArray[Any]:
    if carved.dtype.kind != "f":
        raise InputError(f"expected inputs of numpy's float types, got {carved.dtype}")
    values = random.standard_normal(carved.shape)
    if kind == "statistics":
        finite = carved[np.isfinite(carved)].astype(np.float64)
        values = values * (finite.std() if finite.size else 1.0)
        values += finite.mean() if finite.size else 0.0
    return values.astype(carved.dtype)
