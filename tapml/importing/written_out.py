"""Operations of PyTorch written out in others, because TVM's importer has no right converter.

They are given to ``run_decompositions``. Rows that are added to places by their numbers become sums
over all rows of which those of other places are zero: each result is computed by one reduction, in
one order, on every platform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tapml.importing import fourier, other_forms, resampling
from tapml.importing.factorizations import factorizations
from tapml.importing.further_forms import further
from tapml.importing.integer_powers import integer_powers
from tapml.importing.matrices import matrix_functions
from tapml.importing.sampled_volumes import volumes
from tapml.importing.special_functions import special_functions
from tapml.importing.written_terms import refuse_many
from tapml.importing.written_windows import windows, with_places

_Reduce = Literal["sum", "prod", "mean", "amax", "amin"]
_aten: Final = torch.ops.aten
_SUM, _MEAN = 0, 1


def decompositions(written: set[Any], *, places: bool = False) -> dict[Any, Callable[..., Any]]:
    """PyTorch's own decompositions of an exported program, and these.

    An operation is added to `written` when one of these is used for it. The program itself does not
    tell: it has functions that call them, also in place (``scatter_add_``, ``fft_rfft``). `places`
    is for a program that reads the places of largest elements.
    """
    theirs, ours = _decompositions()
    if places:
        ours = ours | with_places()
    return theirs | {
        operation: _noting(each, operation, written) for operation, each in ours.items()
    }


def _noting(write: Callable[..., Any], operation: Any, written: set[Any]) -> Callable[..., Any]:
    def noted(*arguments: Any, **options: Any) -> Any:
        result = write(*arguments, **options)
        if result is not NotImplemented:
            written.add(operation)
        return result

    return noted


@cache
def _decompositions() -> tuple[dict[Any, Callable[..., Any]], dict[Any, Callable[..., Any]]]:
    """PyTorch's, and those for what TVM has no right converter for."""
    from torch._decomp import decomposition_table
    from torch.export import default_decompositions

    own: dict[Any, Callable[..., Any]] = {
        _aten.scatter_add.default: _scatter_add,
        _aten.scatter_reduce.two: _scatter_reduce,
        _aten.index_add.default: _index_add,
        **windows(),
        _aten.index_put.default: _index_put,
        _aten.unfold.default: _unfold,
        _aten.masked_scatter.default: _masked_scatter,
        _aten.cummax.default: partial(_largest_so_far, torch.amax),
        _aten.cummin.default: partial(_largest_so_far, torch.amin),
        _aten._cdist_forward.default: _distances,
        _aten._embedding_bag.default: _embedding_bag,
        _aten._embedding_bag_forward_only.default: _embedding_bag,
        _aten._fft_c2c.default: fourier.transformed,
        _aten._fft_r2c.default: fourier.transformed_real,
        _aten._fft_c2r.default: fourier.back_to_real,
    }
    known = (
        _aten.grid_sampler_2d.default, _aten.affine_grid_generator.default, *other_forms.KNOWN
    )  # fmt: skip
    given: dict[Any, Callable[..., Any]] = default_decompositions().materialize()
    ours = {operation: decomposition_table[operation] for operation in known} | own
    ours |= other_forms.own() | further() | special_functions() | matrix_functions()
    ours |= factorizations() | integer_powers() | volumes()
    return given | resampling.kept(given), ours


def _scatter_add(operand: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _scatter_reduce(operand, dim, index, source, "sum")


def _index_add(
    operand: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    if alpha != 1:
        source = source * alpha
    if operand.dim() == 0:
        return operand + source.sum()
    shape = [1] * source.dim()
    shape[dim] = -1
    return _scatter_reduce(operand, dim, index.reshape(shape).expand_as(source), source, "sum")


def _scatter_reduce(
    operand: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: _Reduce,
    *,
    include_self: bool = True,
) -> Tensor:
    """The rows of `source` at `index` along `dim`, added to those of `operand` or otherwise."""
    if operand.dim() == 0:
        whole = _scatter_reduce(
            operand[None], 0, index.reshape(-1), source.reshape(-1), reduce,
            include_self=include_self,
        )  # fmt: skip
        return whole[0]
    dim %= operand.dim()
    for axis, extent in enumerate(index.shape):
        source = source.narrow(axis, 0, extent)
    places = torch.arange(operand.shape[dim], dtype=index.dtype, device=index.device)
    refuse_many(f"scatter_reduce ({reduce})", operand.shape[dim], *index.shape)
    hit = index.unsqueeze(dim) == places.reshape(-1, *[1] * (operand.dim() - dim))
    if reduce in ("amax", "amin"):
        given = _extreme(source.unsqueeze(dim), hit, dim + 1, reduce == "amax")
    else:
        neutral = torch.full((), float(reduce == "prod"), dtype=source.dtype)
        given = _REDUCED[reduce](torch.where(hit, source.unsqueeze(dim), neutral), dim + 1)
    count = hit.sum(dim + 1)
    given, count = (_padded(each, operand, dim) for each in (given, count))
    if reduce in ("sum", "mean") and include_self:
        total = operand + given
    elif reduce == "prod" and include_self:
        inside = torch.where(count > 0, given, torch.ones_like(given))
        total = operand * inside
    elif include_self:
        larger = torch.maximum if reduce == "amax" else torch.minimum
        total = larger(operand, given)
        total = torch.where(count > 0, total, operand)
    else:
        total = torch.where(count > 0, given, operand)
    if reduce == "mean":
        number = (count + 1 if include_self else torch.clamp(count, min=1)).to(operand.dtype)
        rounding = None if operand.dtype.is_floating_point else "floor"
        total = torch.div(total, number, rounding_mode=rounding)
    return total


_REDUCED: Final[dict[str, Callable[[Tensor, int], Tensor]]] = {
    "sum": lambda rows, axis: rows.sum(axis, dtype=rows.dtype),
    "mean": lambda rows, axis: rows.sum(axis, dtype=rows.dtype),
    "prod": lambda rows, axis: rows.prod(axis, dtype=rows.dtype),
}


def _extreme(rows: Tensor, chosen: Tensor, axis: int, largest: bool) -> Tensor:
    """The largest or the smallest of the rows that are chosen; an infinity, or the end, of none."""
    reduce = torch.amax if largest else torch.amin
    if rows.dtype.is_floating_point:
        farthest = -math.inf if largest else math.inf
    else:
        limits = torch.iinfo(rows.dtype)
        farthest = limits.min if largest else limits.max
    return reduce(torch.where(chosen, rows, torch.full((), farthest, dtype=rows.dtype)), axis)


def _padded(rows: Tensor, operand: Tensor, dim: int) -> Tensor:
    """With zeros where no index is: an index may have fewer places along the other axes."""
    widths: list[int] = []
    for axis in reversed(range(operand.dim())):
        missing = 0 if axis == dim else int(operand.shape[axis] - rows.shape[axis])
        widths += [0, missing]
    return functional.pad(rows, widths) if any(widths) else rows


def _distances(first: Tensor, second: Tensor, power: float, _mode: int | None) -> Tensor:
    """``cdist``: of each row of `first` from each of `second`."""
    apart = (first.unsqueeze(-2) - second.unsqueeze(-3)).abs()
    if power == 0:
        counted = torch.where(apart == 0, apart, torch.ones_like(apart))
        return torch.where(torch.isnan(apart), apart, counted).sum(-1)
    if power == 1:
        return apart.sum(-1)
    if power == 2:
        return (apart * apart).sum(-1).sqrt()
    if power == float("inf"):
        return apart.amax(-1)
    return apart.pow(power).sum(-1).pow(1 / power)


def _embedding_bag(
    table: Tensor,
    index: Tensor,
    offsets: Tensor,
    _scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    _sparse: bool = False,
    weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums, means or largest values of the rows of each bag; `offsets` begin the bags."""
    starts = offsets[:-1] if include_last_offset else offsets
    refuse_many("embedding_bag", starts.shape[0], index.shape[0], table.shape[1])
    places = torch.arange(index.shape[0], dtype=offsets.dtype, device=offsets.device)
    # Bags that begin at or before a place, but one.
    bag = (starts.unsqueeze(1) <= places.unsqueeze(0)).sum(0) - 1
    inside = torch.arange(starts.shape[0], device=bag.device).unsqueeze(1) == bag.unsqueeze(0)
    if padding >= 0:
        inside = inside & (index != padding).unsqueeze(0)
    rows = functional.embedding(index, table)
    if weights is not None:
        rows = rows * weights.unsqueeze(-1)
    count = inside.sum(1)
    if mode in (_SUM, _MEAN):
        zero = torch.zeros((), dtype=table.dtype)
        found = torch.where(inside.unsqueeze(-1), rows.unsqueeze(0), zero).sum(1)
        if mode == _MEAN:
            found = found / torch.clamp(count, min=1).to(table.dtype).unsqueeze(-1)
    else:
        found = _extreme(rows.unsqueeze(0), inside.unsqueeze(-1), 1, True)
        found = torch.where(count.unsqueeze(-1) > 0, found, torch.zeros_like(found))
    # Training alone reads the others.
    return found, bag, count, count


def _index_put(
    operand: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """Rows put at places, of which the last counts, or added there.

    TVM has those that name a place along every axis. Of masks it has none.
    """
    given = [(axis, each) for axis, each in enumerate(indices) if each is not None]
    if len(given) == 1 and given[0][1].dtype == torch.bool:
        return _put_by_mask(operand, *given[0], values, accumulate)
    if any(each.dtype in (torch.bool, torch.uint8) for _, each in given):
        return NotImplemented
    if len(given) == operand.dim() and not accumulate:
        return NotImplemented
    axes = [axis for axis, _ in given]
    rest = [axis for axis in range(operand.dim()) if axis not in axes]
    count, index = 1, None
    for axis, place in given:
        extent = operand.shape[axis]
        # A place fits 32 bits, and what is computed with 64 does not run on every platform.
        each = place.to(torch.int32)
        own = torch.where(each < 0, each + extent, each)
        index = own if index is None else index * extent + own
        count *= extent
    if index is None or (isinstance(index.numel(), int) and count * index.numel() > _MOST_PAIRS):
        return NotImplemented
    others = [operand.shape[axis] for axis in rest]
    # The indices' own axes are where the named ones were, or first where those are apart.
    before = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    wide = values.expand(*others[:before], *index.shape, *others[before:])
    own_axes = range(before, before + index.dim())
    order = [*own_axes, *(axis for axis in range(wide.dim()) if axis not in own_axes)]
    rows = wide.permute(order).reshape(-1, *others)
    moved = operand.permute(*axes, *rest)
    flat, index = moved.reshape(count, *others), index.reshape(-1)
    hit = index[None] == torch.arange(count, dtype=index.dtype)[:, None]
    ones = [1] * len(others)
    if accumulate:
        refuse_many("index_put (accumulate)", count, index.shape[0], *others)
        zero = torch.zeros((), dtype=operand.dtype)
        added = torch.where(hit.reshape(count, -1, *ones), rows[None], zero)
        flat = flat + added.sum(1, dtype=operand.dtype)
    else:
        numbers = torch.arange(1, index.shape[0] + 1, dtype=torch.int32)
        last = torch.where(hit, numbers, torch.zeros_like(numbers)).amax(1)
        chosen = rows.index_select(0, torch.clamp(last - 1, min=0))
        flat = torch.where((last > 0).reshape(count, *ones), chosen, flat)
    back = sorted(range(operand.dim()), key=[*axes, *rest].__getitem__)
    return flat.reshape(moved.shape).permute(back)


def _put_by_mask(operand: Tensor, axis: int, mask: Tensor, values: Tensor, accumulate: bool) -> Any:
    """What a mask of some axes chooses, from `axis` on, gets one value, or one after the other."""
    after = operand.dim() - axis - mask.dim()
    wide = mask.reshape(*mask.shape, *[1] * after)
    own = values.dim() - after - 1
    if own >= 0:
        given = [1] * mask.dim()
        if not (isinstance(values.shape[own], int) and values.shape[own] <= 1):
            given = list(mask.shape)
            places = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
            values = values.index_select(own, torch.clamp(places, min=0))
        elif values.shape[own] == 0:
            return operand.clone()
        values = values.reshape(*values.shape[:own], *given, *values.shape[own + 1 :])
    same = operand + values if accumulate else values
    return torch.where(wide, same.to(operand.dtype), operand)


# Of a place and a row, of which a reduction reads every one.
_MOST_PAIRS: Final = 1 << 26


def _unfold(operand: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of `size` along an axis, each `step` behind the one before, as a last axis."""
    dim %= operand.dim()
    count = (operand.shape[dim] - size) // step + 1
    places = torch.arange(count)[:, None] * step + torch.arange(size)[None]
    rows = operand.index_select(dim, places.reshape(-1))
    shape = (*operand.shape[:dim], count, size, *operand.shape[dim + 1 :])
    return rows.reshape(shape).movedim(dim + 1, -1)


def _masked_scatter(operand: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The numbers of `source` one after the other where the mask is true."""
    wide = mask.expand_as(operand)
    places = wide.reshape(-1).to(torch.int64).cumsum(0) - 1
    given = source.reshape(-1).index_select(0, torch.clamp(places, min=0))
    return torch.where(wide, given.reshape(operand.shape), operand)


def _largest_so_far(reduce: Callable[..., Tensor], operand: Tensor, dim: int) -> Any:
    """``cummax`` or ``cummin``: of the values up to each place, the extreme one and its last place.

    What is not a number counts as extreme.
    """
    if operand.dim() == 0:
        return operand.clone(), torch.zeros((), dtype=torch.int64)
    dim %= operand.dim()
    extent = operand.shape[dim]
    if operand.dtype == torch.bool or (
        isinstance(operand.numel(), int) and extent * operand.numel() > _MOST_PAIRS
    ):
        return NotImplemented
    ones = [1] * (operand.dim() - dim - 1)
    # In 32 bits, of which every platform finds the largest.
    numbers = torch.arange(extent, dtype=torch.int32)
    places = numbers.reshape(1, extent, *ones)
    before = places <= numbers.reshape(extent, 1, *ones)
    rows, own = operand.unsqueeze(dim), operand.unsqueeze(dim + 1)
    # A place behind counts as one's own, which changes nothing.
    values = reduce(torch.where(before, rows, own), dim + 1)
    wide = values.unsqueeze(dim + 1)
    same = rows == wide
    if operand.dtype.is_floating_point:
        same = same | (torch.isnan(rows) & torch.isnan(wide))
    hit = torch.where(before & same, places, torch.zeros_like(places))
    return values, hit.amax(dim + 1).to(torch.int64)
