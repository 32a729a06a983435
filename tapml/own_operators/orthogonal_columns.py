"""Rotations of a matrix's columns until they are orthogonal to each other: one-sided Jacobi.

For A ``[rows, columns]`` it finds an orthogonal V with A V = G, whose columns are orthogonal
(Hestenes, 1958; Golub and Van Loan, "Matrix Computations", section 8.6.3). Their lengths are the
singular values of A, and V has its right singular vectors. A pair p, q of columns is rotated by

    zeta = (q.q - p.p) / (2 p.q),  t = sign(zeta) / (|zeta| + sqrt(1 + zeta^2))
    p' = (p - t q) / sqrt(1 + t^2),  q' = (q + t p) / sqrt(1 + t^2)

Each sweep takes every pair once. The number of sweeps is fixed, since kernels of all platforms have
the same steps: convergence is quadratic, and matrices of up to 64 columns need fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tapml.own_operators.own_operator import OwnOperator
from tapml.own_operators.wkv import of_length

if TYPE_CHECKING:
    from torch import Tensor

SWEEPS: Final = 10
MOST_COLUMNS: Final = 64
_PARTS: Final = 4


def rotate(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pair by pair, in the dtype of the tensor.

    Parameters
    ----------
    matrices
        A, ``[matrices, rows, columns]``.

    Returns
    -------
    orthogonal, rotation
        G, of the shape of `matrices`, and V, ``[matrices, columns, columns]``.
    sums
        ``[matrices, 4]``, what the last pair was rotated by.

    Raises
    ------
    ValueError
        If the shape does not fit: the oracle runs it on stored data.
    """
    import torch

    if matrices.dim() != 3 or matrices.shape[-1] > MOST_COLUMNS:
        raise ValueError(f"expected up to {MOST_COLUMNS} columns, got {tuple(matrices.shape)}")
    count, _, columns = matrices.shape
    found = matrices.clone()
    rotation = torch.eye(columns, dtype=found.dtype).repeat(count, 1, 1)
    sums = found.new_zeros(count, _PARTS)
    for first, second in _pairs(columns) * SWEEPS:
        p, q = found[:, :, first], found[:, :, second]
        product = (p * q).sum(-1)
        none = product == 0
        zeta = ((q * q).sum(-1) - (p * p).sum(-1)) / (2 * torch.where(none, 1.0, product))
        size = 1 / (zeta.abs() + (1 + zeta * zeta).sqrt())
        turn = torch.where(none, 0.0, torch.where(zeta < 0, -size, size))[:, None]
        shrink = 1 / (1 + turn * turn).sqrt()
        for each in (found, rotation):
            p, q = each[:, :, first], each[:, :, second]
            moved = (p - turn * q) * shrink, (q + turn * p) * shrink
            each[:, :, first], each[:, :, second] = moved
    return found, rotation, sums


def _pairs(columns: int) -> list[tuple[int, int]]:
    return [(p, q) for p in range(columns - 1) for q in range(p + 1, columns)]


def make_function(*types: Any) -> Any:
    """The rotations as a PrimFunc: a block for each matrix, which alone writes its results."""
    from tvm import tirx
    from tvm.script import tirx as T

    count, rows, columns = types[0].shape
    dtype = str(types[0].dtype)

    def one(value: float) -> Any:
        return tirx.FloatImm(dtype, value)

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def orthogonal_columns(
        given_data: T.handle, found_data: T.handle, rotation_data: T.handle, sums_data: T.handle
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        matrices = T.int64()
        given = T.match_buffer(given_data, (matrices, rows, columns), dtype)
        found = T.match_buffer(found_data, (matrices, rows, columns), dtype)
        rotation = T.match_buffer(rotation_data, (matrices, columns, columns), dtype)
        sums = T.match_buffer(sums_data, (matrices, 4), dtype)
        for matrix in range(matrices):
            with T.sblock("orthogonal_columns"):
                m = T.axis.remap("S", [matrix])
                T.reads(given[m, 0:rows, 0:columns])
                T.writes(
                    found[m, 0:rows, 0:columns],
                    rotation[m, 0:columns, 0:columns],
                    sums[m, 0:4],
                )
                for i, j in T.grid(rows, columns):
                    found[m, i, j] = given[m, i, j]
                for i, j in T.grid(columns, columns):
                    rotation[m, i, j] = T.if_then_else(i == j, one(1.0), one(0.0))
                for _sweep, p, after in T.grid(SWEEPS, columns - 1, columns - 1):
                    if p + after + 1 < columns:
                        for part in range(4):
                            sums[m, part] = one(0.0)
                        for i in range(rows):
                            sums[m, 0] = sums[m, 0] + found[m, i, p] * found[m, i, p]
                            sums[m, 1] = (
                                sums[m, 1] + found[m, i, p + after + 1] * found[m, i, p + after + 1]
                            )
                            sums[m, 2] = sums[m, 2] + found[m, i, p] * found[m, i, p + after + 1]
                        # The cotangent of the double angle, then the tangent, then the cosine.
                        sums[m, 3] = (sums[m, 1] - sums[m, 0]) / (
                            one(2.0) * T.if_then_else(sums[m, 2] == one(0.0), one(1.0), sums[m, 2])
                        )
                        sums[m, 1] = one(1.0) / (
                            T.if_then_else(sums[m, 3] < one(0.0), -sums[m, 3], sums[m, 3])
                            + T.sqrt(one(1.0) + sums[m, 3] * sums[m, 3])
                        )
                        sums[m, 0] = T.if_then_else(
                            sums[m, 2] == one(0.0),
                            one(0.0),
                            T.if_then_else(sums[m, 3] < one(0.0), -sums[m, 1], sums[m, 1]),
                        )
                        sums[m, 1] = one(1.0) / T.sqrt(one(1.0) + sums[m, 0] * sums[m, 0])
                        for i in range(rows):
                            sums[m, 2] = found[m, i, p]
                            sums[m, 3] = found[m, i, p + after + 1]
                            found[m, i, p] = (sums[m, 2] - sums[m, 0] * sums[m, 3]) * sums[m, 1]
                            found[m, i, p + after + 1] = (
                                sums[m, 3] + sums[m, 0] * sums[m, 2]
                            ) * sums[m, 1]
                        for i in range(columns):
                            sums[m, 2] = rotation[m, i, p]
                            sums[m, 3] = rotation[m, i, p + after + 1]
                            rotation[m, i, p] = (sums[m, 2] - sums[m, 0] * sums[m, 3]) * sums[m, 1]
                            rotation[m, i, p + after + 1] = (
                                sums[m, 3] + sums[m, 0] * sums[m, 2]
                            ) * sums[m, 1]
                # What is left in them is no result.
                for part in range(4):
                    sums[m, part] = one(0.0)

    return of_length(orthogonal_columns, count if isinstance(count, tirx.IntImm) else None)


def _shapes(matrices: Tensor) -> tuple[Any, Any, Any]:
    count, _, columns = matrices.shape
    return (
        matrices.new_empty(matrices.shape),
        matrices.new_empty((count, columns, columns)),
        matrices.new_empty((count, _PARTS)),
    )


def _results(*types: Any) -> list[Any]:
    from tvm import relax

    (given,) = types
    count, _, columns = given.shape
    dtype = str(given.dtype)
    return [
        given,
        relax.TensorType((count, columns, columns), dtype),
        relax.TensorType((count, _PARTS), dtype),
    ]


OPERATOR = OwnOperator(
    name="orthogonal_columns",
    schema="(Tensor matrices) -> (Tensor, Tensor, Tensor)",
    compute=rotate,
    shapes=_shapes,
    function=make_function,
    results=_results,
)
