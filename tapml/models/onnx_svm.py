"""``SVMRegressor`` and ``SVMClassifier`` of ``ai.onnx.ml`` written out in ONNX's own operators.

A kernel of the rows and the support vectors, a product with the coefficients, and of classes a
vote of all pairs. What onnxruntime makes of the pairs is its ``svmclassifier.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

import numpy as np

from tapml.models.onnx_written import Array, Written, refused

_KERNELS: Final = frozenset({"LINEAR", "POLY", "RBF", "SIGMOID"})
_SMALLEST_PROBABILITY: Final = 1e-7


def write_svm_regressor(
    node: Any, given: Mapping[str, Any], written: Written, _shapes: Any
) -> list[str]:
    """One number for each row, or 1 and -1 of what is inside and outside of one class."""
    _check_plain(node, given)
    one, count = written.one, int(given.get("n_supports") or 0)
    rho = written.weight(np.array(given["rho"][:1], np.float32))
    coefficients = np.array(given["coefficients"], np.float32)
    rows = one("Cast", node.input[0], to=1)
    value = _kernel(node, given, written, count) if count else rows
    total = one("MatMul", value, written.weight(coefficients.reshape(-1, 1)))
    total = one("Add", total, rho)
    if given.get("one_class"):
        zero = written.weight(np.array(0, np.float32))
        sides = (written.weight(np.array(side, np.float32)) for side in (1, -1))
        total = one("Where", one("Greater", total, zero), *sides)
    return [total]


def write_svm_classifier(
    node: Any, given: Mapping[str, Any], written: Written, _shapes: Any
) -> list[str]:
    """The label of each row, and its scores: of pairs, or probabilities of two classes."""
    _check_plain(node, given)
    labels = given.get("classlabels_ints")
    counts = [int(each) for each in given.get("vectors_per_class") or ()]
    if not labels or len(counts) != len(labels) or len(labels) < 2:
        raise refused(node, "it has no support vectors for each of two or more classes")
    one, values = written.one, np.array(labels, np.int64)
    pairs = _pairs(node, given, written, counts)
    if len(labels) == 2:
        zero = written.weight(np.array(0, np.float32))
        first = one("Greater", pairs, zero)
        names = (written.weight(values[at : at + 1]) for at in (0, 1))
        label = one("Reshape", one("Where", first, *names), written.weight(np.array([-1])))
    if given.get("prob_a"):
        if len(labels) > 2:
            raise refused(
                node,
                f"probabilities of {len(labels)} classes: expected two; fit with probability=False",
            )
        # The label is that of the score, also where the other class is more probable.
        return [label, _probabilities(given, written, pairs)]
    if len(labels) == 2:
        # Of two classes onnxruntime turns the score of the pair around.
        return [label, one("Concat", one("Neg", pairs), pairs, axis=1)]
    votes = _votes(written, pairs, len(labels))
    place = one("ArgMax", votes, axis=1, keepdims=0)
    return [one("Gather", written.weight(values), place, axis=0), pairs]


def _check_plain(node: Any, given: Mapping[str, Any]) -> None:
    kind = given.get("post_transform", b"NONE").decode()
    if kind != "NONE":
        raise refused(node, f"post_transform {kind}: expected NONE")


def _kernel(node: Any, given: Mapping[str, Any], written: Written, count: int) -> str:
    """``[rows, count]`` of the rows and the support vectors."""
    kind = given.get("kernel_type", b"LINEAR").decode()
    if kind not in _KERNELS:
        raise refused(node, f"the kernel {kind}: expected one of {', '.join(sorted(_KERNELS))}")
    vectors = np.array(given["support_vectors"], np.float32).reshape(count, -1)
    gamma, offset, degree = [*(given.get("kernel_params") or ()), 0, 0, 0][:3]
    one = written.one

    def number(value: float) -> str:
        return written.weight(np.array(value, np.float32))

    rows = one("Cast", node.input[0], to=1)
    if kind == "RBF":
        # Differences, as onnxruntime takes them: squares of sums would cancel.
        wide = one("Unsqueeze", rows, written.weight(np.array([1], np.int64)))
        apart = one("Sub", wide, written.weight(vectors[None]))
        axes = written.weight(np.array([2], np.int64))
        distance = one("ReduceSum", one("Mul", apart, apart), axes, keepdims=0)
        return one("Exp", one("Mul", distance, number(-gamma)))
    product = one("MatMul", rows, written.weight(vectors.T))
    if kind == "LINEAR":
        return product
    moved = one("Add", one("Mul", product, number(gamma)), number(offset))
    return one("Tanh", moved) if kind == "SIGMOID" else _power(node, written, moved, degree)


def _power(node: Any, written: Written, value: str, degree: float) -> str:
    """A whole power, as products: a negative base has no logarithm."""
    if degree != int(degree) or not 1 <= degree <= 16:
        raise refused(
            node, f"a polynomial of degree {degree}: expected a whole number from 1 to 16"
        )
    found = value
    for _ in range(int(degree) - 1):
        found = written.one("Mul", found, value)
    return found


def _pairs(node: Any, given: Mapping[str, Any], written: Written, counts: list[int]) -> str:
    """Scores of all pairs of classes, ``[rows, pairs]``: above 0 for the first of the two."""
    total = sum(counts)
    coefficients = np.array(given["coefficients"], np.float32).reshape(-1, total)
    starts = np.cumsum([0, *counts])
    matrix: Array = np.zeros((total, len(counts) * (len(counts) - 1) // 2), np.float32)
    for column, (i, j) in enumerate(combinations(range(len(counts)), 2)):
        for own, row in ((i, j - 1), (j, i)):
            span = slice(starts[own], starts[own + 1])
            matrix[span, column] = coefficients[row, span]
    rho = np.array(given["rho"], np.float32)
    if len(rho) != matrix.shape[1]:
        raise refused(node, f"{len(rho)} offsets for {matrix.shape[1]} pairs of classes")
    product = written.one("MatMul", _kernel(node, given, written, total), written.weight(matrix))
    return written.one("Add", product, written.weight(rho))


def _votes(written: Written, pairs: str, classes: int) -> str:
    """How many pairs each class has won, ``[rows, classes]``."""
    one = written.one
    wins = np.zeros((2, classes * (classes - 1) // 2, classes), np.float32)
    for column, (i, j) in enumerate(combinations(range(classes), 2)):
        wins[0, column, i] = wins[1, column, j] = 1
    zero = written.weight(np.array(0, np.float32))
    first = one("Cast", one("Greater", pairs, zero), to=1)
    second = one("Sub", written.weight(np.array(1, np.float32)), first)
    sides = (
        one("MatMul", side, written.weight(wins[at])) for at, side in enumerate((first, second))
    )
    return one("Add", *sides)


def _probabilities(given: Mapping[str, Any], written: Written, pairs: str) -> str:
    """Of two classes, by a sigmoid of their score (Platt).

    onnxruntime ends its iteration to the same numbers where they are 0.0025 apart.
    """
    one = written.one

    def number(value: float) -> str:
        return written.weight(np.array(value, np.float32))

    moved = one("Mul", pairs, number(-given["prob_a"][0]))
    first = one("Sigmoid", one("Sub", moved, number(given["prob_b"][0])))
    bounds = number(_SMALLEST_PROBABILITY), number(1 - _SMALLEST_PROBABILITY)
    first = one("Clip", first, *bounds)
    return one("Concat", first, one("Sub", number(1), first), axis=1)
