"""Factorizations of small matrices beside those of :mod:`.matrices`: LU, singular values, eigen.

Signs of singular vectors and of eigenvectors are those that rotations leave, until a program
decides them (:mod:`.fixed_results`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from tapml.importing.matrices import (
    columns_of,
    is_vector,
    orthogonal,
    over_largest,
    solved_triangle,
)
from tapml.own_operators import register

_aten: Final = torch.ops.aten


def factorizations() -> dict[Any, Callable[..., Any]]:
    """The functions by their operation."""
    register()
    return {
        _aten._linalg_svd.default: _singular,
        _aten._linalg_eigh.default: _eigen,
        _aten.linalg_pinv.atol_rtol_tensor: _pseudo_inverse,
        _aten.linalg_matrix_rank.atol_rtol_float: _rank,
        _aten.linalg_matrix_rank.atol_rtol_tensor: _rank,
        _aten.linalg_lstsq.default: least_squares,
        _aten.linalg_lu_factor_ex.default: lambda a, **_: _factored(a)[:3],
        _aten.linalg_lu_factor.default: lambda a, **_: _factored(a)[:2],
        _aten.linalg_lu.default: _parts_of_lu,
        _aten.lu_unpack.default: _unpacked,
        _aten.linalg_lu_solve.default: _solved_by_lu,
        _aten.triangular_solve.default: _solved_by_triangle,
        _aten.geqrf.default: _reflections,
        _aten.linalg_householder_product.default: _product_of_reflections,
        _aten.ormqr.default: _times_reflections,
    }


def _rotated(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix with orthogonal columns, over a size, the rotation that does it, and the size."""
    size = torch.ones((*matrix.shape[:-2], 1, 1), dtype=matrix.dtype)
    if 0 not in matrix.shape:
        matrix, size = over_largest(matrix, (-2, -1))
    flat = matrix.reshape(-1, *matrix.shape[-2:])
    found, rotation, _ = torch.ops.tapml.orthogonal_columns(flat)
    columns = matrix.shape[-1]
    rotation = rotation.reshape(*matrix.shape[:-2], columns, columns)
    return found.reshape(matrix.shape), rotation, size


def _in_order(matrix: Tensor, order: Tensor) -> Tensor:
    return matrix.gather(-1, order.unsqueeze(-2).expand(matrix.shape))


def _singular(
    matrix: Tensor,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = matrix.shape[-2:]
    if rows < columns and not compute_uv:
        return _singular(matrix.mT, compute_uv=False)
    if rows < columns:
        right, sizes, left = _singular(matrix.mT, full_matrices, compute_uv)
        return left.mT, sizes, right.mT
    columns_of("svd", matrix)
    found, rotation, size = _rotated(matrix)
    sizes, order = torch.sort((found * found).sum(-2).sqrt(), -1, descending=True)
    sizes = sizes * size[..., 0]
    if not compute_uv:
        return matrix.new_empty(0), sizes, matrix.new_empty(0)
    # The reflections give vectors also where a singular value is zero.
    vectors, rest = orthogonal(_in_order(found, order), "complete" if full_matrices else "reduced")
    signs = torch.where(rest.diagonal(0, -2, -1) < 0, -1.0, 1.0).to(matrix.dtype).unsqueeze(-2)
    left = torch.cat([vectors[..., :columns] * signs, vectors[..., columns:]], -1)
    return left, sizes, _in_order(rotation, order).mT


def _eigen(matrix: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    count = columns_of("eigh", matrix)
    lower = matrix.tril() if UPLO.upper() == "L" else matrix.triu().mT
    whole = lower + lower.tril(-1).mT
    # Without eigenvalues below zero, so that no two of one size are of different signs.
    shift = whole.abs().sum(-1).amax(-1)[..., None, None]
    _, vectors, _ = _rotated(whole + shift * torch.eye(count, dtype=matrix.dtype))
    values, order = torch.sort((vectors * (whole @ vectors)).sum(-2), -1)
    return values, _in_order(vectors, order) if compute_v else matrix.new_empty(0)


def _counted(sizes: Tensor, extents: Sequence[int], atol: Any, rtol: Any) -> Tensor:
    """Which singular values are above the bounds, by PyTorch's own where none is given."""
    if rtol is None:
        rtol = torch.finfo(sizes.dtype).eps * max(extents)
        if isinstance(atol, Tensor):
            rtol = torch.where(atol > 0, 0.0, rtol)
        elif atol:
            rtol = 0.0
    if isinstance(rtol, Tensor):
        rtol = rtol.to(sizes.dtype)[..., None]
    bound: Tensor = rtol * sizes[..., :1]
    if isinstance(atol, Tensor):
        bound = torch.maximum(bound, atol.to(sizes.dtype)[..., None].expand(bound.shape))
    elif atol:
        bound = bound.clamp(min=float(atol))
    return sizes > bound


def _rank(matrix: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    _, sizes, _ = _singular(matrix, compute_uv=False)
    return _counted(sizes, matrix.shape[-2:], atol, rtol).sum(-1)


def _pseudo_inverse(
    matrix: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Tensor:
    left, sizes, right = _singular(matrix, full_matrices=False)
    kept = _counted(sizes, matrix.shape[-2:], atol, rtol)
    inverse = torch.where(kept, 1 / torch.where(kept, sizes, 1.0), 0.0)
    return right.mT @ (inverse.unsqueeze(-1) * left.mT)


def least_squares(
    matrix: Tensor, right: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``lstsq`` of matrices of full rank: solution and rank, as PyTorch's default driver."""
    rows, columns = matrix.shape[-2:]
    vector = is_vector(matrix, right)
    given = right.unsqueeze(-1) if vector else right
    if rows >= columns:
        basis, rest = orthogonal(matrix)
        found = solved_triangle(rest, basis.mT @ given, upper=True)
    else:
        basis, rest = orthogonal(matrix.mT)
        found = basis @ solved_triangle(rest.mT, given, upper=False)
    none = matrix.new_empty(0)
    rank = torch.full(matrix.shape[:-2], min(rows, columns), dtype=torch.int64)
    return found.squeeze(-1) if vector else found, none, rank, none


def _factored(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L below the diagonal and U on and above it, pivots from 1 on, info, and the rows' order."""
    rows, columns = matrix.shape[-2:]
    steps = columns_of("lu", matrix, min(rows, columns))
    numbers, across = torch.arange(rows, dtype=torch.int32), torch.arange(columns)
    zero, one = (torch.full((), each, dtype=matrix.dtype) for each in (0.0, 1.0))
    work, order, pivots = matrix, numbers.expand(*matrix.shape[:-2], rows), []
    info = torch.zeros(matrix.shape[:-2], dtype=torch.int32)
    for step in range(steps):
        column = torch.where(numbers >= step, work[..., step].abs(), -one)
        place = column.argmax(-1).to(torch.int32)
        work, order = _swapped(work, order, step, place, numbers)
        row, column = work[..., step, :], work[..., step]
        pivot = row[..., step, None]
        info = torch.where((info == 0) & (pivot[..., 0] == 0), step + 1, info)
        factor = column / torch.where(pivot == 0, one, pivot)
        below = (numbers > step).unsqueeze(-1)
        rest = work - factor.unsqueeze(-1) * torch.where(across > step, row, zero).unsqueeze(-2)
        changed = torch.where(across == step, factor.unsqueeze(-1), rest)
        work = torch.where(below, changed, work)
        pivots.append(place + 1)
    return work, torch.stack(pivots, -1), info, order


def _swapped(
    work: Tensor, order: Tensor, step: int, place: Tensor, numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows, and their numbers, with that of a step and the one at `place` exchanged."""
    hit, own = place.unsqueeze(-1) == numbers, numbers == step
    zero = torch.zeros((), dtype=work.dtype)
    chosen = torch.where(hit.unsqueeze(-1), work, zero).sum(-2, keepdim=True)
    moved = torch.where(hit.unsqueeze(-1), work[..., step : step + 1, :], work)
    work = torch.where(own.unsqueeze(-1), chosen, moved)
    return work, _swapped_numbers(order, step, hit, own)


def _swapped_numbers(order: Tensor, step: int, hit: Tensor, own: Tensor) -> Tensor:
    chosen = torch.where(hit, order, 0).sum(-1, keepdim=True, dtype=torch.int32)
    moved = torch.where(hit, order[..., step : step + 1], order)
    return torch.where(own, chosen, moved)


def _order_of(pivots: Tensor, rows: int) -> Tensor:
    numbers = torch.arange(rows, dtype=torch.int32)
    order = numbers.expand(*pivots.shape[:-1], rows)
    for step in range(pivots.shape[-1]):
        hit = (pivots[..., step, None] - 1) == numbers
        order = _swapped_numbers(order, step, hit, numbers == step)
    return order


def _permutation(order: Tensor, dtype: torch.dtype) -> Tensor:
    numbers = torch.arange(order.shape[-1], dtype=torch.int32)
    return (order.unsqueeze(-2) == numbers.unsqueeze(-1)).to(dtype)


def _triangles(work: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = work.shape[-2:]
    least = min(rows, columns)
    unit = torch.eye(rows, least, dtype=work.dtype)
    return work[..., :least].tril(-1) + unit, work[..., :least, :].triu()


def _parts_of_lu(matrix: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    work, _, _, order = _factored(matrix)
    return _permutation(order, matrix.dtype), *_triangles(work)


def _unpacked(
    work: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    order = _order_of(pivots, work.shape[-2])
    return _permutation(order, work.dtype), *_triangles(work)


def _solved_by_lu(
    work: Tensor, pivots: Tensor, right: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    if not left:
        return _solved_by_lu(work, pivots, right.mT, adjoint=not adjoint).mT
    permutation = _permutation(_order_of(pivots, work.shape[-2]), work.dtype)
    lower, upper = _triangles(work)
    before = torch.broadcast_shapes(work.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
    right = right.expand(*before, *right.shape[-2:])
    if adjoint:
        half = solved_triangle(upper.mT, right, upper=False)
        return permutation @ solved_triangle(lower.mT, half, upper=True, unitriangular=True)
    half = solved_triangle(lower, permutation.mT @ right, upper=False, unitriangular=True)
    return solved_triangle(upper, half, upper=True)


def _solved_by_triangle(
    right: Tensor,
    matrix: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    given = matrix.mT if transpose else matrix
    found = solved_triangle(given, right, upper=upper != transpose, unitriangular=unitriangular)
    return found, matrix


def _reflections(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """R on and above the diagonal, the axes of LAPACK's reflections below it, and their scales."""
    height, width = matrix.shape[-2:]
    numbers, across = torch.arange(height), torch.arange(width)
    one, zero = (torch.full((), each, dtype=matrix.dtype) for each in (1.0, 0.0))
    work, scales = matrix, []
    for step in range(columns_of("geqrf", matrix, min(height, width))):
        column = work[..., step]
        inner, size = over_largest(torch.where(numbers < step, zero, column), -1)
        first, below = inner[..., step : step + 1], torch.where(numbers > step, inner, zero)
        none = below.abs().amax(-1, keepdim=True) == 0
        length = torch.sqrt((inner * inner).sum(-1, keepdim=True))
        head = torch.where(none, first, torch.where(first < 0, length, -length))
        scale = torch.where(none, zero, (head - first) / torch.where(none, one, head))
        tail = below / torch.where(none, one, first - head)
        changed = _reflected(work, torch.where(numbers == step, one, tail), scale)
        own = torch.where(numbers == step, head * size, torch.where(numbers > step, tail, column))
        work = torch.where(across == step, own.unsqueeze(-1), work)
        work = torch.where(across > step, changed, work)
        scales.append(scale)
    return work, torch.cat(scales, -1) if scales else matrix.new_zeros(*matrix.shape[:-2], 0)


def _reflected(operand: Tensor, axis: Tensor, scale: Tensor) -> Tensor:
    along = (axis.unsqueeze(-1) * operand).sum(-2)
    return operand - (scale * axis).unsqueeze(-1) * along.unsqueeze(-2)


def _times_reflections(
    packed: Tensor, scales: Tensor, right: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """The product of reflections with a matrix on their right, or on their left."""
    if not left:
        return _times_reflections(packed, scales, right.mT, transpose=not transpose).mT
    count = columns_of("a product of reflections", packed, scales.shape[-1])
    numbers = torch.arange(packed.shape[-2])
    one, zero = (torch.full((), each, dtype=packed.dtype) for each in (1.0, 0.0))
    for step in range(count) if transpose else reversed(range(count)):
        below = torch.where(numbers > step, packed[..., step], zero)
        axis = torch.where(numbers == step, one, below)
        right = _reflected(right, axis, scales[..., step : step + 1])
    return right


def _product_of_reflections(packed: Tensor, scales: Tensor) -> Tensor:
    rows, columns = packed.shape[-2:]
    unit = torch.eye(rows, columns, dtype=packed.dtype).expand(packed.shape)
    return _times_reflections(packed, scales, unit)
