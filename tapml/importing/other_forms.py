"""Operations of PyTorch in the form of others that TVM's importer converts.

They are given to ``run_decompositions``. Those of PyTorch's own table are taken from there. One
that returns ``NotImplemented`` leaves its operation to a converter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from tapml_targets.errors import UnsupportedOperatorError

_aten: Final = torch.ops.aten

# Of PyTorch's table of decompositions.
KNOWN: Final = (_aten.dist.default,)


def own() -> dict[Any, Callable[..., Any]]:
    """Those that are written here."""
    return {
        _aten.add.Tensor: partial(_with_multiple, torch.add),
        _aten.sub.Tensor: partial(_with_multiple, torch.sub),
        _aten.addmv.default: partial(_with_product, torch.mv),
        _aten.addbmm.default: partial(
            _with_product, lambda x, y: torch.bmm(x, y).sum(0, dtype=x.dtype)
        ),
        _aten.baddbmm.default: partial(_with_product, torch.bmm),
        _aten.clamp.Tensor: _between,
        _aten.clamp_min.Tensor: torch.maximum,
        _aten.clamp_max.Tensor: torch.minimum,
        _aten.cumsum.default: _of_one,
        _aten.cumprod.default: _of_one,
        _aten.elu.default: _elu,
        _aten.linalg_vector_norm.default: _norm,
        _aten._trilinear.default: _trilinear,
        _aten._pdist_forward.default: _distances,
        _aten.avg_pool2d.default: partial(_mean_of_windows, _aten.avg_pool2d.default),
        _aten.avg_pool3d.default: partial(_mean_of_windows, _aten.avg_pool3d.default),
        _aten.adaptive_max_pool2d.default: _largest_of_parts,
        _aten.native_group_norm.default: _plain_group_norm,
        _aten.arange.start_step: _counted_down,
        _aten.argmax.default: partial(_place_of_all, torch.argmax),
        _aten.argmin.default: partial(_place_of_all, torch.argmin),
        _aten.exp2.default: lambda x: torch.pow(2.0, _float(x)),
        _aten.fmax.default: lambda x, y: _known(torch.maximum, x, y),
        _aten.fmin.default: lambda x, y: _known(torch.minimum, x, y),
        _aten.copysign.Tensor: _with_sign,
        _aten.copysign.Scalar: lambda x, y: _float(x).abs() * math.copysign(1.0, y),
        _aten.hypot.default: _hypot,
        _aten.signbit.default: _is_negative,
        _aten.scatter.reduce: _scatter,
        _aten.scatter.value_reduce: _scatter_number,
        _aten.tril_indices.default: partial(_places_of_half, True),
        _aten.triu_indices.default: partial(_places_of_half, False),
        _aten.searchsorted.Tensor: _place_among,
        _aten.kthvalue.default: _nth_smallest,
        _aten.slice_scatter.default: _with_rows,
        _aten.multilabel_margin_loss_forward.default: _margins,
        _aten.var_mean.correction: _var_mean,
        _aten.bitwise_left_shift.Scalar_Tensor: lambda x, y: torch.full_like(y, x) << y,
        _aten.bitwise_right_shift.Scalar_Tensor: lambda x, y: torch.full_like(y, x) >> y,
        _aten.neg.default: lambda x: 0 - x if x.dtype == torch.uint8 else NotImplemented,
        _aten.sign.default: lambda x: x.clamp(max=1) if x.dtype == torch.uint8 else NotImplemented,
    }


def _counted_down(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any
) -> Any:
    """``arange`` with a step below 0: TVM's importer counts two numbers too many of it."""
    if not isinstance(step, int) or step >= 0 or isinstance(start, float) or isinstance(end, float):
        return NotImplemented
    count = (start - end - step - 1) // -step
    return torch.arange(count, dtype=dtype or torch.int64) * step + start


def _float(operand: Tensor) -> Tensor:
    return operand if operand.dtype.is_floating_point else operand.to(torch.get_default_dtype())


def _with_multiple(operation: Any, one: Any, other: Any, *, alpha: Any = 1) -> Any:
    """TVM's converters leave the factor of the second out."""
    return NotImplemented if alpha == 1 else operation(one, other * alpha)


def _with_product(
    multiply: Callable[[Tensor, Tensor], Tensor],
    operand: Tensor,
    one: Tensor,
    other: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    if not operand.dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    product = multiply(one, other)
    product = product if alpha == 1 else product * alpha
    # What is multiplied with nothing may be no number.
    if beta == 0:
        return product
    return product + (operand if beta == 1 else operand * beta)


def _between(operand: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Of integers, too, for which TVM writes an infinity at an open end."""
    found = operand if low is None else torch.maximum(operand, low)
    return found if high is None else torch.minimum(found, high)


def _of_one(operand: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """A running sum or product of one number, which TVM has no axis for."""
    if operand.dim():
        return NotImplemented
    whole = torch.int64 if not operand.dtype.is_floating_point else operand.dtype
    return operand.to(dtype or whole, copy=True)


def _elu(operand: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """With all digits near zero, and every number that TVM's converter leaves out."""
    below = torch.expm1(operand * input_scale) * (alpha * scale)
    return torch.where(operand > 0, operand * scale, below)


def _norm(
    operand: Tensor,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """How many are not zero; TVM's converter divides by the order."""
    if order != 0:
        return NotImplemented
    given = (operand != 0).to(dtype or operand.dtype)
    return given.sum(list(dim) if dim else list(range(operand.dim())), keepdim=keepdim)


def _trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    _unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors with axes put in, summed over some: ``nn.Bilinear``."""
    result: Any = 1
    for operand, axes in ((first, expand1), (second, expand2), (third, expand3)):
        result = reduce(torch.unsqueeze, sorted(axes), operand) * result
    total: Tensor = result.sum(list(sumdim))
    return total


def _distances(rows: Tensor, power: float = 2) -> Any:
    """``pdist``: of each row from each that follows."""
    count = rows.shape[0]
    if not (isinstance(count, int) and 1 < count <= _MOST_ROWS):
        return NotImplemented
    behind = [torch.arange(row * count + row + 1, (row + 1) * count) for row in range(count - 1)]
    apart = torch.cdist(rows, rows, power, "donot_use_mm_for_euclid_dist")
    return apart.reshape(-1).index_select(0, torch.cat(behind))


# More of them make a program of as many operations.
_MOST_ROWS: Final = 256


def _mean_of_windows(
    pool: Callable[..., Tensor],
    operand: Tensor,
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    _count_include_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    """A divisor of its own, which TVM's converters leave out."""
    if not operand.dtype.is_floating_point:
        raise UnsupportedOperatorError(
            "a mean of windows is imported of floating-point numbers alone: make them float"
        )
    if divisor is None:
        return NotImplemented
    axes = 2 if pool is _aten.avg_pool2d.default else 3
    sizes, strides, paddings = (
        list(each) * (axes // len(each)) for each in (size, stride or size, padding)
    )
    if ceil_mode:
        extents = operand.shape[-axes:]
        if not all(isinstance(each, int) for each in extents):
            raise UnsupportedOperatorError(
                "a mean of windows with ceil_mode and divisor_override is imported of fixed "
                "extents alone. Leave out one"
            )
        each_axis = zip(extents, sizes, strides, paddings, strict=True)
        behind = [_behind_the_edge(*each) for each in each_axis]
        if any(behind):
            widths = [width for each in reversed(behind) for width in (0, each)]
            operand = functional.pad(operand, widths)
    given = pool(operand, size, stride, padding, False, True, None)
    return given * (math.prod(sizes) / divisor)


def _behind_the_edge(extent: int, size: int, stride: int, padding: int) -> int:
    """How far the last window, which begins before the edge, reaches beyond the padding."""
    whole = extent + 2 * padding
    last = -(-(whole - size) // stride) * stride
    if last >= extent + padding:
        last -= stride
    return max(0, last + size - whole)


def _largest_of_parts(operand: Tensor, size: Sequence[int]) -> Any:
    """``adaptive_max_pool2d``: parts of an image that differ by one in extent, and may overlap."""
    extents = operand.shape[-2:]
    if math.prod(size) > _MOST_PARTS or not all(isinstance(each, int) for each in extents):
        return NotImplemented
    values, places = [], []
    for row, column in product(*map(range, size)):
        top, bottom = _part(row, size[0], extents[0])
        left, right = _part(column, size[1], extents[1])
        part = operand[..., top:bottom, left:right].flatten(-2)
        own = part.argmax(-1)
        values.append(part.amax(-1))
        width = right - left
        places.append((top + own // width) * extents[1] + left + own % width)
    shape = [*operand.shape[:-2], *size]
    return tuple(torch.stack(each, -1).reshape(shape) for each in (values, places))


def _part(index: int, count: int, extent: int) -> tuple[int, int]:
    """Begin and end of one of `count` parts of an axis, as PyTorch cuts it."""
    return index * extent // count, -(-(index + 1) * extent // count)


# Each becomes operations of its own.
_MOST_PARTS: Final = 64


def _plain_group_norm(
    operand: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rows: int,
    channels: int,
    *rest: Any,
) -> Any:
    """Without a weight or a bias, which TVM's converter asks for."""
    if weight is not None and bias is not None:
        return NotImplemented
    weight = torch.ones(channels, dtype=operand.dtype) if weight is None else weight
    bias = torch.zeros(channels, dtype=operand.dtype) if bias is None else bias
    return _aten.native_group_norm.default(operand, weight, bias, rows, channels, *rest)


def _place_of_all(
    find: Callable[..., Tensor], operand: Tensor, dim: int | None = None, keepdim: bool = False
) -> Any:
    """A place among all elements in a row of them, whose 64 bits every platform narrows."""
    if operand.dtype == torch.uint8:
        # A place is looked for from the least number on, which no zero of uint8 exceeds.
        return find(operand.to(torch.int32), dim, keepdim)
    if dim is not None or operand.dim() == 0:
        return NotImplemented
    return find(operand.reshape(1, -1), 1).reshape([1] * operand.dim() if keepdim else [])


def _known(extreme: Callable[[Tensor, Tensor], Tensor], one: Tensor, other: Tensor) -> Tensor:
    """The extreme of two, or the one that is a number."""
    kind = torch.result_type(one, other)
    one, other = one.to(kind), other.to(kind)
    if not one.dtype.is_floating_point:
        return extreme(one, other)
    found = torch.where(torch.isnan(other), one, extreme(one, other))
    return torch.where(torch.isnan(one), other, found)


def _hypot(one: Tensor, other: Tensor) -> Tensor:
    """Without squares beyond the largest number."""
    one, other = one.abs(), other.abs()
    # A maximum may drop what is not a number.
    larger, smaller = torch.where(one > other, one, other), torch.where(one > other, other, one)
    part = smaller / torch.where(larger > 0, larger, torch.ones_like(larger))
    found = larger * torch.sqrt(1 + part * part)
    return torch.where(torch.isinf(one), one, torch.where(torch.isinf(other), other, found))


def _with_sign(operand: Tensor, sign: Tensor) -> Tensor:
    size = operand.to(torch.result_type(_float(operand), _float(sign))).abs()
    return torch.where(_is_negative(sign), -size, size)


def _is_negative(operand: Tensor) -> Tensor:
    """With the sign of a zero."""
    if not operand.dtype.is_floating_point:
        return operand < 0
    return (operand < 0) | ((operand == 0) & (1 / operand < 0))


def _scatter(operand: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Tensor:
    """``scatter`` with ``reduce``, the earlier form of ``scatter_reduce``."""
    named = {"add": "sum", "multiply": "prod"}[reduce]
    return operand.scatter_reduce(dim, index, source, named)


def _scatter_number(
    operand: Tensor, dim: int, index: Tensor, value: float, *, reduce: str
) -> Tensor:
    source = torch.full(index.shape, value, dtype=operand.dtype)
    return _scatter(operand, dim, index, source, reduce=reduce)


def _places_of_half(
    lower: bool, rows: int, columns: int, offset: int = 0, **options: Any
) -> Tensor:
    """Rows and columns of the places below or above a diagonal, which sizes alone decide."""
    starts = [max(0, 0 if lower else row + offset) for row in range(rows)]
    ends = [min(columns, row + offset + 1 if lower else columns) for row in range(rows)]
    counts = [max(0, end - start) for start, end in zip(starts, ends, strict=True)]
    place = torch.arange(sum(counts))
    row = torch.zeros_like(place)
    column = place + starts[0] if starts else place
    before = 0
    for at in range(1, rows):
        before += counts[at - 1]
        behind = place >= before
        row = row + behind
        column = torch.where(behind, place - before + starts[at], column)
    return torch.stack((row, column)).to(options.get("dtype") or torch.int64)


def _place_among(
    ordered: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """How many of an ordered row are less than each value, or not more; all for no number."""
    if sorter is not None:
        ordered = ordered.gather(-1, sorter)
    right = right if side is None else side == "right"
    rows = ordered if ordered.dim() == 1 else ordered.unsqueeze(-2)
    wide = values.unsqueeze(-1)
    before = rows <= wide if right else rows < wide
    if values.dtype.is_floating_point:
        before = before | torch.isnan(wide)
    return before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _nth_smallest(
    operand: Tensor, place: int, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if operand.dim() == 0:
        return operand.clone(), torch.zeros((), dtype=torch.int64)
    values, places = (each.narrow(dim, place - 1, 1) for each in torch.sort(operand, dim))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _with_rows(
    operand: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """``slice_scatter`` with a step, where TVM's reads beyond the source, or of another dtype."""
    if source.dtype != operand.dtype:
        source = source.to(operand.dtype)
        return _aten.slice_scatter.default(operand, source, dim, start, end, step)
    extent = operand.shape[dim]
    if step == 1 or not all(isinstance(each, int) for each in (extent, start or 0, end or 0)):
        return NotImplemented
    if source.shape[dim] == 0:
        return operand.clone()
    first = range(extent)[start:end].start
    places = torch.arange(extent)
    inside = (places >= first) & (places < first + step * source.shape[dim])
    inside = inside & ((places - first) % step == 0)
    rows = torch.clamp((places - first) // step, 0, source.shape[dim] - 1)
    ones = [1] * (operand.dim() - dim % operand.dim() - 1)
    return torch.where(inside.reshape(-1, *ones), source.index_select(dim, rows), operand)


def _margins(operand: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """``multilabel_margin_loss``; PyTorch's decomposition counts places behind the last target."""
    count = operand.shape[-1]
    places = torch.arange(count)
    end = torch.where(target == -1, places, count).amin(-1, keepdim=True)
    known = places < end
    chosen = operand.gather(-1, torch.where(known, target, 0))
    is_target = (torch.where(known, target, -1).unsqueeze(-1) == places).any(-2)
    margins = torch.clamp(1 - chosen.unsqueeze(-1) + operand.unsqueeze(-2), min=0) / count
    counted = known.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    loss = torch.where(counted, margins, 0).sum((-2, -1))
    if reduction:
        loss = loss.mean() if reduction == 1 else loss.sum()
    return loss, is_target.to(operand.dtype)


def _var_mean(
    operand: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    axes = list(dim) if dim else list(range(operand.dim()))
    spread = torch.var(operand, axes, correction=correction, keepdim=keepdim)
    return spread, operand.mean(axes, keepdim=keepdim)
