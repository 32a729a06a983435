"""Where what a rank has of a tensor lies in the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _MaskPartial


@dataclass(frozen=True)
class Piece:
    """A copy of what a rank has of a tensor of samples.

    Attributes
    ----------
    value
        The local values.
    shape, offset
        Of the tensor of all this rank's samples, and where the local values begin in it; empty if
        they are all of it.
    summed
        The ranks whose local values add up to the tensor; empty if each rank has its values.
    """

    value: torch.Tensor
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    summed: tuple[int, ...] = ()


def piece_of(tensor: torch.Tensor) -> Piece | None:
    """A copy of the local part; None if it is no contiguous block of the whole.

    It calls no collective and no operation of DTensor: a copy of an embedding's partial sum would
    use up the mask that its reduction needs.
    """
    if not isinstance(tensor, DTensor):
        return Piece(tensor.detach().clone())
    placements, mesh = tensor.placements, tensor.device_mesh
    partial = [each for each in placements if isinstance(each, Partial)]
    others = {type(each) for each in placements if not each.is_partial()}
    operations = {each.reduce_op for each in partial}
    if not others <= {Replicate, Shard} or not operations <= {"sum", "avg"}:
        return None
    value = tensor._local_tensor.detach().clone()
    summed: tuple[int, ...] = ()
    for each in partial:
        if isinstance(each, _MaskPartial):
            if each.mask_buffer.data is None:
                return None
            each.mask_buffer.apply_mask(value)  # type: ignore[no-untyped-call]
    if partial:
        summed, shares = _ranks_of(mesh, [each.is_partial() for each in placements])
        if "avg" in operations:
            if operations != {"avg"}:
                return None
            value /= shares
    if Shard not in others:
        return Piece(value, summed=summed)
    _, offset = compute_local_shape_and_global_offset(
        tensor.shape,
        mesh,
        [Replicate() if each.is_partial() else each for each in placements],
    )
    return Piece(value, tuple(tensor.shape), tuple(offset), summed)


def joined(pieces: Sequence[Piece], samples: int = 0) -> Piece | None:
    """The pieces of all calls as one; None if they do not fit together.

    Calls are micro-batches, one after the other; or, if `samples` is not 0, each has all so many
    samples: then what all calls give for a sample lies together.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if any(not each.value.ndim for each in pieces):
        return None
    if len({(each.value.shape[1:], each.offset, each.summed) for each in pieces}) != 1:
        return None
    if first.shape and any(each.shape[0] != each.value.shape[0] for each in pieces):
        return None  # Cut by samples: the next micro-batch does not follow on this rank.
    shape = (sum(each.shape[0] for each in pieces), *first.shape[1:]) if first.shape else ()
    values = [each.value for each in pieces]
    if not samples or any(each.shape[0] % samples for each in values):
        return replace(first, value=torch.cat(values), shape=shape)
    by_sample = [
        each.reshape(samples, each.shape[0] // samples, *each.shape[1:]) for each in values
    ]
    return replace(first, value=torch.cat(by_sample, dim=1).flatten(0, 1), shape=shape)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor; it shares the tensor's memory."""
    plain = tensor.detach()
    return plain._local_tensor if isinstance(plain, DTensor) else plain


def place_of(tensor: torch.Tensor) -> dict[str, Any] | None:
    """Where the local part of a tensor lies in the whole; None if it is no contiguous block."""
    if not isinstance(tensor, DTensor):
        return {"placement": "whole"}
    kinds = {type(each) for each in tensor.placements}
    if not kinds <= {Replicate, Shard}:
        return None
    if kinds == {Replicate}:
        return {"placement": "whole"}
    _, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return {"placement": "shard", "shape": list(tensor.shape), "offset": list(offset)}


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose partial sums, one on each rank, are summed; all ranks call this."""
    if not isinstance(tensor, DTensor) or not any(each.is_partial() for each in tensor.placements):
        return tensor
    kept = [Replicate() if each.is_partial() else each for each in tensor.placements]
    return tensor.redistribute(placements=kept)


def _ranks_of(mesh: DeviceMesh, partial: Sequence[bool]) -> tuple[tuple[int, ...], int]:
    """The ranks over whose partial values this rank's are summed, and how many they are."""
    here = mesh.get_coordinate() or [0] * mesh.ndim
    index = tuple(slice(None) if over else place for over, place in zip(partial, here, strict=True))
    found = mesh.mesh[index]
    return tuple(int(each) for each in found.flatten()), math.prod(found.shape)
