"""Linear algebra of small matrices of fixed extents, by elimination, column after column.

What belongs to a column is chosen by a mask, so that every step has the same operations, and the
operators of a plan do not grow with the extent. A singular matrix gives what is no number, where
PyTorch raises: a kernel cannot raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from tapml_targets.errors import UnsupportedOperatorError

_aten: Final = torch.ops.aten
# Each column is a step of several operators.
_MOST_COLUMNS: Final = 32
# Of a matrix whose reflections are written out.
_MOST_ROWS: Final = 512
# A larger sum of a column than 2 to their power gives what is no number.
_SQUARINGS: Final = 24
_TERMS: Final = 14


def matrix_functions() -> dict[Any, Callable[..., Any]]:
    """The functions by their operation."""
    return {
        _aten.linalg_inv.default: _inverse,
        _aten.inverse.default: _inverse,
        _aten.linalg_inv_ex.default: lambda a, **_: _with_info(_inverse(a)),
        _aten.linalg_tensorinv.default: _tensor_inverse,
        _aten.linalg_tensorsolve.default: _tensor_solved,
        _aten.linalg_solve.default: _solved,
        _aten._linalg_solve_ex.default: _solved_with_info,
        _aten._linalg_det.default: lambda a: (_determinant(a), a, _places(a)),
        _aten._linalg_slogdet.default: lambda a: (*_sign_and_log(a), a, _places(a)),
        _aten.linalg_cholesky.default: _cholesky,
        _aten.linalg_cholesky_ex.default: lambda a, *, upper=False, **_: _with_info(
            _cholesky(a, upper=upper)
        ),
        _aten.cholesky.default: _cholesky,
        _aten.cholesky_solve.default: _solved_by_cholesky,
        _aten.cholesky_inverse.default: lambda a, upper=False: _solved_by_cholesky(
            torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape), a, upper
        ),
        _aten.linalg_solve_triangular.default: solved_triangle,
        _aten.linalg_qr.default: orthogonal,
        _aten.linalg_matrix_exp.default: _exponential,
    }  # fmt: skip


def _with_info(found: Tensor) -> tuple[Tensor, Tensor]:
    """With 1 for each matrix that has an infinity or what is no number, else 0."""
    return found, _is_odd(found).flatten(-2).any(-1).to(torch.int32)


def _tensor_inverse(operand: Tensor, ind: int = 2) -> Tensor:
    rows, columns = operand.shape[:ind], operand.shape[ind:]
    return _inverse(operand.reshape(math.prod(rows), -1)).reshape(*columns, *rows)


def _tensor_solved(operand: Tensor, right: Tensor, dims: list[int] | None = None) -> Tensor:
    if dims:
        operand = operand.movedim(dims, list(range(-len(dims), 0)))
    columns = operand.shape[right.dim() :]
    matrix = operand.reshape(right.numel(), -1)
    return _solved(matrix, right.reshape(-1)).reshape(columns)


def _is_odd(operand: Tensor) -> Tensor:
    return torch.isinf(operand) | torch.isnan(operand)


def _solved_with_info(
    matrix: Tensor, right: Tensor, *, left: bool = True, **_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = _solved(matrix, right, left=left)
    odd = _is_odd(found)
    odd = odd.any(-1) if is_vector(matrix, right) else odd.flatten(-2).any(-1)
    # One matrix may have many right sides.
    while odd.dim() > matrix.dim() - 2:
        odd = odd.any(0)
    for axis, extent in enumerate(matrix.shape[:-2]):
        if extent == 1 and odd.shape[axis] != 1:
            odd = odd.any(axis, keepdim=True)
    return found, matrix, _places(matrix), odd.to(torch.int32)


def _places(matrix: Tensor) -> Tensor:
    """In the place of pivots, which only a gradient reads."""
    return torch.zeros(matrix.shape[:-1], dtype=torch.int32)


def columns_of(name: str, matrix: Tensor, count: Any = None) -> int:
    """How many columns a step of an operation each has.

    Raises
    ------
    UnsupportedOperatorError
        If they are not fixed, or too many, or the numbers are not real.
    """
    count = matrix.shape[-1] if count is None else count
    if not matrix.dtype.is_floating_point:
        raise UnsupportedOperatorError(f"{name} is imported of real matrices alone")
    if not isinstance(count, int) or count > _MOST_COLUMNS:
        raise UnsupportedOperatorError(
            f"{name} is imported of matrices of fixed extents up to {_MOST_COLUMNS}, "
            f"this one has {count}"
        )
    return count


def over_largest(numbers: Tensor, axes: int | tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Numbers over the largest along `axes`, and it: a square overflows from 1.9e19 on."""
    largest = numbers.abs().amax(axes, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    return numbers / largest, largest


def _masks(count: int) -> Tensor:
    """Row by row the mask of one column, of numbers: a mask is a constant of the plan."""
    return torch.eye(count, dtype=torch.bool)


def _chosen(mask: Tensor, operand: Tensor, axis: int) -> Tensor:
    """The row or column that a mask chooses, which alone counts, infinite or not."""
    return torch.where(mask, operand, torch.zeros((), dtype=operand.dtype)).sum(axis)


def _eliminated(
    name: str, matrix: Tensor, right: Tensor | None
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Gauss and Jordan's elimination with the largest pivot of each column.

    Returns
    -------
    solution
        Of `matrix` for the columns of `right`; without these, what is left of `matrix`.
    pivots
        Of each step, ``[...]``.
    places
        The row of each pivot, ``[...]``.
    """
    count = columns_of(name, matrix)
    # Places of 64 bits are not compared on every platform.
    numbers = torch.arange(count, dtype=torch.int32)
    work = matrix if right is None else torch.cat([matrix, right], -1)
    width = work.shape[-1]
    one, zero = (torch.full((), each, dtype=matrix.dtype) for each in (1.0, 0.0))
    taken: Any = torch.zeros(matrix.shape[:-1], dtype=torch.bool)
    pivots, places, rows = [], [], []
    for mask in torch.eye(count, width, dtype=torch.bool):
        column = _chosen(mask, work, -1)
        place = torch.where(taken, -one, column.abs()).argmax(-1).to(torch.int32)
        hit = place.unsqueeze(-1) == numbers
        row = _chosen(hit.unsqueeze(-1), work, -2)
        pivot = _chosen(mask, row, -1)
        # A determinant of 0 is a number.
        divisor = torch.where(pivot == 0, one, pivot) if right is None else pivot
        row = row / divisor.unsqueeze(-1)
        rest = work - column.unsqueeze(-1) * row.unsqueeze(-2)
        work = torch.where(hit.unsqueeze(-1), row.unsqueeze(-2), rest)
        taken = taken | hit
        pivots.append(pivot)
        places.append(place)
        rows.append(hit)
    if right is None:
        return work, pivots, places
    hits = torch.stack(rows, -2)
    solution = torch.where(hits.unsqueeze(-1), work[..., count:].unsqueeze(-3), zero).sum(-2)
    return solution, pivots, places


def _inverse(matrix: Tensor) -> Tensor:
    count = columns_of("inv", matrix)
    unit = torch.eye(count, dtype=matrix.dtype).expand(matrix.shape)
    return _eliminated("inv", matrix, unit)[0]


def is_vector(matrix: Tensor, right: Tensor) -> bool:
    """As PyTorch tells right sides that are vectors from matrices."""
    return right.dim() == 1 or (
        matrix.dim() - 1 == right.dim() and right.shape == matrix.shape[:-1]
    )


def _solved(matrix: Tensor, right: Tensor, *, left: bool = True) -> Tensor:
    vector = is_vector(matrix, right)
    if vector:
        right = right.unsqueeze(-1)
    if not left:
        return _solved(matrix.mT, right.mT).mT
    before = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
    wide, given = (each.expand(*before, *each.shape[-2:]) for each in (matrix, right))
    found = _eliminated("solve", wide, given)[0]
    return found.squeeze(-1) if vector else found


def _sign_of_order(places: list[Tensor]) -> Tensor:
    """Of the permutation of rows: -1 to the power of its inversions."""
    order = torch.stack(places, -1)
    count = len(places)
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    wrong = (order.unsqueeze(-1) > order.unsqueeze(-2)) & later
    return 1 - 2 * (wrong.to(torch.int32).sum((-2, -1), dtype=torch.int32) % 2)


def _determinant(matrix: Tensor) -> Tensor:
    _, pivots, places = _eliminated("det", matrix, None)
    found = _sign_of_order(places).to(matrix.dtype)
    for each in pivots:
        found = found * each
    return found


def _sign_and_log(matrix: Tensor) -> tuple[Tensor, Tensor]:
    _, pivots, places = _eliminated("slogdet", matrix, None)
    each = torch.stack(pivots, -1)
    negative = (each < 0).to(torch.int32).sum(-1, dtype=torch.int32) % 2
    sign = (_sign_of_order(places) * (1 - 2 * negative)).to(matrix.dtype)
    sign = torch.where((each == 0).any(-1), torch.zeros_like(sign), sign)
    return sign, torch.log(each.abs()).sum(-1)


def _cholesky(matrix: Tensor, upper: bool = False) -> Tensor:
    numbers = torch.arange(columns_of("cholesky", matrix))
    work = matrix.mT if upper else matrix
    columns = []
    zero = torch.zeros((), dtype=matrix.dtype)
    for place, mask in enumerate(_masks(len(numbers))):
        column = _chosen(mask, work, -1)
        pivot = torch.sqrt(_chosen(mask, column, -1)).unsqueeze(-1)
        column = torch.where(numbers >= place, column / pivot, zero)
        work = work - column.unsqueeze(-1) * column.unsqueeze(-2)
        columns.append(column)
    return torch.stack(columns, -2 if upper else -1)


def solved_triangle(
    matrix: Tensor,
    right: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """The solution for a matrix of which only the part below or above the diagonal counts."""
    if not left:
        return solved_triangle(matrix.mT, right.mT, upper=not upper, unitriangular=unitriangular).mT
    count = columns_of("solve_triangular", matrix)
    numbers = torch.arange(count)
    zero = torch.zeros((), dtype=matrix.dtype)
    rows: dict[int, Tensor] = {}
    for place in reversed(range(count)) if upper else range(count):
        mask = _masks(count)[place]
        row = _chosen(mask.unsqueeze(-1), right, -2)
        column = _chosen(mask, matrix, -1)
        if not unitriangular:
            row = row / _chosen(mask, column, -1).unsqueeze(-1)
        behind = numbers < place if upper else numbers > place
        column = torch.where(behind, column, zero)
        right = right - column.unsqueeze(-1) * row.unsqueeze(-2)
        rows[place] = row
    return torch.stack([rows[place] for place in range(count)], -2)


def _solved_by_cholesky(right: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    half = solved_triangle(lower, right, upper=False)
    return solved_triangle(lower.mT, half, upper=True)


def orthogonal(matrix: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Householder's reflections, with LAPACK's signs."""
    height, width = matrix.shape[-2:]
    least = columns_of("qr", matrix, min(height, width) if isinstance(height, int) else height)
    if height > _MOST_ROWS:
        raise UnsupportedOperatorError(
            f"qr is imported of matrices of up to {_MOST_ROWS} rows, this one has {height}"
        )
    numbers = torch.arange(height)
    one, zero = (torch.full((), each, dtype=matrix.dtype) for each in (1.0, 0.0))
    work = matrix
    unit = torch.eye(height, dtype=matrix.dtype).expand(*matrix.shape[:-2], height, height)
    for place in range(min(height - 1, width)):
        column = _chosen(torch.arange(width) == place, work, -1)
        # What an axis is multiplied with does not change its reflection.
        column, _ = over_largest(torch.where(numbers < place, zero, column), -1)
        first = _chosen(numbers == place, column, -1).unsqueeze(-1)
        below = torch.where(numbers > place, column, zero)
        rest = (below * below).sum(-1, keepdim=True)
        size = torch.sqrt(first * first + rest)
        # The sum has no cancellation.
        head = torch.where(first < 0, first - size, first + size)
        axis = torch.where(numbers == place, head, below)
        none = below.abs().amax(-1, keepdim=True) == 0
        scale = torch.where(none, zero, 2 / torch.where(none, one, head * head + rest))
        along = (axis.unsqueeze(-1) * work).sum(-2)
        work = work - (scale * axis).unsqueeze(-1) * along.unsqueeze(-2)
        across = (unit * axis.unsqueeze(-2)).sum(-1)
        unit = unit - across.unsqueeze(-1) * (scale * axis).unsqueeze(-2)
    work = work.triu()
    if mode == "complete":
        return unit, work
    first_rows = work[..., :least, :]
    return (torch.zeros(0, dtype=matrix.dtype) if mode == "r" else unit[..., :least]), first_rows


def _exponential(matrix: Tensor) -> Tensor:
    """A Taylor series of the matrix made small by halving, and its squares."""
    if not matrix.dtype.is_floating_point:
        raise UnsupportedOperatorError("matrix_exp is imported of real matrices alone")
    size = matrix.abs().sum(-2).amax(-1)[..., None, None]
    half, one = (torch.full((), each, dtype=matrix.dtype) for each in (0.5, 1.0))
    # One product: of steps that read the last one twice, the text doubles with each in one kernel.
    bounds = 2.0 ** torch.arange(_SQUARINGS, dtype=matrix.dtype)
    small = matrix * torch.where(size > bounds, half, one).prod(-1, keepdim=True)
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    found: Tensor = unit + small / _TERMS
    for term in range(_TERMS - 1, 0, -1):
        found = unit + small @ found / term
    left = size / 2 ** (_SQUARINGS - 1)
    for _ in range(_SQUARINGS):
        found, left = torch.where(left > 1, found @ found, found), left * 2
    return torch.where(size > 2**_SQUARINGS, torch.full_like(found, math.nan), found)
