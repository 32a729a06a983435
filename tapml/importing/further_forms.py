"""Rarer operations of PyTorch in the form of others, given to ``run_decompositions``.

Those on the parts of a number read its bits, which no approximation of a platform's powers of two
and logarithms changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from tapml.importing.written_terms import refuse_many
from tapml.own_operators import register
from tapml_targets.errors import UnsupportedOperatorError

_aten: Final = torch.ops.aten
# Bits of the fraction, and what is added to the exponent.
_FORMATS: Final = {
    torch.float32: (torch.int32, 23, 127), torch.float64: (torch.int64, 52, 1023),
}  # fmt: skip
# What is sorted in the place of dtypes that no sort has.
_SORTED_AS: Final = {
    **dict.fromkeys((torch.bool, torch.int8, torch.uint8, torch.int16), torch.int32),
    torch.bfloat16: torch.float32,
}


def further() -> dict[Any, Callable[..., Any]]:
    """The functions by their operation."""
    register()
    return {
        _aten.logcumsumexp.default: _log_of_sums_so_far,
        _aten.frexp.Tensor: _parts,
        _aten.ldexp.Tensor: _by_power,
        _aten.nextafter.default: _next,
        _aten.nanmedian.default: _middle_of_all,
        _aten.nanmedian.dim: _middle,
        _aten.median.default: lambda x: _true_middle(x.reshape(-1), 0)[0],
        _aten.median.dim: _true_middle,
        _aten.mode.default: _most_frequent,
        _aten.sort.stable: _stable_sort,
        _aten.sort.default: _sort_of_others,
        _aten.topk.default: _largest_of_others,
        _aten.diagonal_scatter.default: _with_diagonal,
        _aten.index_reduce.default: _index_reduce,
        _aten.put.default: _put,
        _aten.conv_tbc.default: _convolution_of_times,
        _aten.lerp.Tensor: _between,
        _aten.as_strided.default: _by_strides,
        _aten.as_strided_copy.default: _by_strides,
        _aten.as_strided_scatter.default: _with_strides,
        _aten.gcd.default: _greatest_divisor,
        _aten.lcm.default: _common_multiple,
    }


def _stable_sort(
    operand: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """All sorts here are stable."""
    values, places = torch.ops.aten.sort.default(operand, dim, descending)
    return values, places


def _sort_of_others(operand: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """What no sort has: integers of 64 bits by their lower words, then by their upper ones."""
    if operand.dtype in _SORTED_AS and operand.dim():
        values, places = torch.sort(operand.to(_SORTED_AS[operand.dtype]), dim, descending)
        return values.to(operand.dtype), places
    if operand.dtype != torch.int64 or operand.dim() == 0:
        return NotImplemented
    lower = operand.to(torch.int32) ^ torch.iinfo(torch.int32).min
    first = torch.sort(lower, dim, descending)[1]
    upper = (operand >> 32).to(torch.int32).gather(dim, first)
    places = first.gather(dim, torch.sort(upper, dim, descending)[1])
    return operand.gather(dim, places), places


def _largest_of_others(
    operand: Tensor, count: int, dim: int = -1, largest: bool = True, _ordered: bool = True
) -> Any:
    if operand.dtype not in (*_SORTED_AS, torch.int64) or operand.dim() == 0:
        return NotImplemented
    values, places = torch.sort(operand, dim, largest)
    return values.narrow(dim, 0, count), places.narrow(dim, 0, count)


def _log_of_sums_so_far(operand: Tensor, dim: int) -> Tensor:
    if operand.dim() == 0:
        return operand.clone()
    dim %= operand.dim()
    extent = operand.shape[dim]
    refuse_many("logcumsumexp", extent, *operand.shape)
    places = torch.arange(extent)
    ones = [1] * (operand.dim() - dim - 1)
    before = places.reshape(1, -1, *ones) <= places.reshape(-1, 1, *ones)
    none = torch.full((), -math.inf, dtype=operand.dtype)
    return torch.where(before, operand.unsqueeze(dim), none).logsumexp(dim + 1)


def _parts(operand: Tensor) -> tuple[Tensor, Tensor]:
    """``frexp``: a fraction between 0.5 and 1, and a power of two."""
    narrow = operand.dtype.itemsize == 2
    wide = operand.float() if narrow else operand
    whole, digits, middle = _FORMATS[wide.dtype]
    tiny = wide.abs() < torch.finfo(wide.dtype).tiny
    scaled = torch.where(tiny, wide * 2.0 ** (digits + 1), wide)
    bits = scaled.view(whole)
    found = ((bits >> digits) & (2 * middle + 1)) - (middle - 1)
    found = torch.where(tiny, found - (digits + 1), found)
    fraction = (bits & ~((2 * middle + 1) << digits)) | ((middle - 1) << digits)
    none = (wide == 0) | ~torch.isfinite(wide)
    made = torch.where(none, wide, fraction.view(wide.dtype))
    power = torch.where(none, torch.zeros_like(found), found)
    return made.to(operand.dtype), power.to(torch.int32)


def _by_power(operand: Tensor, power: Tensor) -> Tensor:
    """``ldexp``: in three steps, whose powers of two are numbers."""
    kind = torch.result_type(operand, torch.empty((), dtype=torch.get_default_dtype()))
    if power.dtype.is_floating_point or kind not in _FORMATS:
        return operand * torch.pow(2.0, power.to(kind))
    whole, digits, middle = _FORMATS[kind]
    found, left = operand.to(kind), power.clamp(-3 * middle + 3, 3 * middle - 3).to(whole)
    for steps in (3, 2, 1):
        part = torch.div(left, steps, rounding_mode="floor")
        found, left = found * ((part + middle) << digits).view(kind), left - part
    return found


def _next(operand: Tensor, other: Tensor) -> Tensor:
    if operand.dtype not in _FORMATS:
        raise UnsupportedOperatorError(
            f"nextafter of {operand.dtype} is not imported: make it float32"
        )
    shape = (operand + other).shape
    operand, other = operand.expand(shape), other.expand(shape)
    whole, _, _ = _FORMATS[operand.dtype]
    bits = operand.contiguous().view(whole)
    away = (other > operand) == (operand > 0)
    moved = torch.where(away, bits + 1, bits - 1).view(operand.dtype)
    least = torch.ones_like(bits).view(operand.dtype)
    from_zero = torch.where(other > 0, least, -least)
    found = torch.where(operand == 0, from_zero, moved)
    found = torch.where(operand == other, other, found)
    return torch.where(torch.isnan(operand) | torch.isnan(other), operand + other, found)


def _middle(operand: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``nanmedian``: the lower middle of those that are numbers, sorted behind all others."""
    if operand.dim() == 0:
        return operand.clone(), torch.zeros((), dtype=torch.int64)
    missing = torch.isnan(operand)
    if operand.dtype.is_floating_point:
        # Sorts of processors know no NaN.
        operand = torch.where(missing, torch.full((), math.inf, dtype=operand.dtype), operand)
    ordered, places = torch.sort(operand, dim)
    count = (~missing).sum(dim, keepdim=True, dtype=torch.int32)
    at = torch.clamp((count - 1) // 2, min=0).to(torch.int64)
    values, own = (each.gather(dim, at) for each in (ordered, places))
    if operand.dtype.is_floating_point:
        values = torch.where(count == 0, torch.full_like(values, math.nan), values)
    return (values, own) if keepdim else (values.squeeze(dim), own.squeeze(dim))


def _true_middle(operand: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``median``: NaN, and its first place, where one is; TVM's is for processors alone."""
    values, places = _middle(operand, dim, True)
    if operand.dim() and operand.dtype.is_floating_point:
        missing = torch.isnan(operand)
        odd = missing.any(dim, keepdim=True)
        values = torch.where(odd, torch.full_like(values, math.nan), values)
        first = missing.to(torch.int32).argmax(dim, keepdim=True)
        places = torch.where(odd, first, places)
    if keepdim or not operand.dim():
        return values, places
    return values.squeeze(dim), places.squeeze(dim)


def _middle_of_all(operand: Tensor) -> Tensor:
    return _middle(operand.reshape(-1), 0)[0]


def _most_frequent(operand: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``mode``: of equally frequent values the least, and its last place."""
    if operand.dim() == 0:
        return operand.clone(), torch.zeros((), dtype=torch.int64)
    rows = operand.movedim(dim, -1)
    refuse_many("mode", operand.shape[dim], *operand.shape)
    count = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).sum(-1, dtype=torch.int32)
    often = count == count.amax(-1, keepdim=True)
    limits = torch.finfo if operand.dtype.is_floating_point else torch.iinfo
    far = math.inf if operand.dtype.is_floating_point else limits(operand.dtype).max
    values = torch.where(often, rows, torch.full((), far, dtype=rows.dtype)).amin(-1, keepdim=True)
    places = torch.arange(operand.shape[dim], dtype=torch.int32)
    own = torch.where(rows == values, places, 0).amax(-1, keepdim=True).to(torch.int64)
    if not keepdim:
        return values.squeeze(-1), own.squeeze(-1)
    return values.movedim(-1, dim), own.movedim(-1, dim)


def _with_diagonal(
    operand: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    moved = operand.movedim((dim1, dim2), (-2, -1))
    rows, columns = (torch.arange(each) for each in moved.shape[-2:])
    mask = rows[:, None] + offset == columns[None]
    if source.shape[-1] == 0:
        return operand.clone()
    along = torch.clamp(rows if offset >= 0 else rows + offset, 0, source.shape[-1] - 1)
    own = source.index_select(-1, along).unsqueeze(-1)
    return torch.where(mask, own, moved).movedim((-2, -1), (dim1, dim2))


def _index_reduce(
    operand: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    shape = [1] * source.dim()
    shape[dim] = -1
    wide = index.reshape(shape).expand_as(source)
    return operand.scatter_reduce(dim, wide, source, reduce, include_self=include_self)


def _put(operand: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = operand.reshape(-1)
    put = flat.index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return put.reshape(operand.shape)


def _convolution_of_times(operand: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """``conv_tbc``: time, batch and channels in this order."""
    found = torch.nn.functional.conv1d(
        operand.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad
    )
    return found.permute(2, 0, 1)


def _between(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """``lerp``, from the nearer end on, as PyTorch computes it."""
    apart = end - start
    return torch.where(weight.abs() < 0.5, start + weight * apart, end - apart * (1 - weight))


def _strided(
    operand: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> tuple[list[int], Tensor]:
    """The operand's axes as they lie in memory, and places there, ``[size]`` as one row."""
    extents = (*operand.shape, *size, *stride, 0 if offset is None else offset)
    fixed = all(isinstance(each, int) for each in extents)
    order = sorted(range(operand.dim()), key=operand.stride, reverse=True) if fixed else []
    if not fixed or not operand.permute(order).is_contiguous():
        raise UnsupportedOperatorError(
            "as_strided is imported of fixed extents and of tensors that fill their memory. Call "
            ".contiguous() before, or slice and transpose"
        )
    # An offset is counted from the beginning of memory, in which a slice begins later.
    first = 0 if offset is None else offset - int(operand.storage_offset())
    last = first + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    if all(size) and not 0 <= first <= last < operand.numel():
        raise UnsupportedOperatorError(
            f"as_strided reads places {first} to {last} of a tensor with {operand.numel()} numbers:"
            " take it of the whole tensor, not of a slice"
        )
    places = torch.full((), first, dtype=torch.int64)
    for extent, step in zip(size, stride, strict=True):
        places = places[..., None] + torch.arange(extent) * step
    return order, places.reshape(-1)


def _by_strides(
    operand: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    order, places = _strided(operand, size, stride, storage_offset)
    return operand.permute(order).reshape(-1).index_select(0, places).reshape(*size)


def _with_strides(
    operand: Tensor,
    source: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    order, places = _strided(operand, size, stride, storage_offset)
    dense = operand.permute(order)
    put = dense.reshape(-1).index_put((places,), source.reshape(-1)).reshape(dense.shape)
    return put.permute([order.index(axis) for axis in range(len(order))])


def _greatest_divisor(first: Tensor, second: Tensor) -> Tensor:
    kind = torch.result_type(first, second)
    wide = torch.int64 if kind == torch.int64 else torch.int32
    first, second = torch.broadcast_tensors(first.to(wide).abs(), second.to(wide).abs())  # type: ignore[no-untyped-call]
    found: Tensor = torch.ops.tapml.greatest_divisor(first.reshape(-1), second.reshape(-1))[0]
    return found.reshape(first.shape).to(kind)


def _common_multiple(first: Tensor, second: Tensor) -> Tensor:
    divisor = torch.gcd(first, second)
    divisor = torch.where(divisor == 0, torch.ones_like(divisor), divisor)
    return (torch.div(first, divisor, rounding_mode="trunc") * second).abs()
