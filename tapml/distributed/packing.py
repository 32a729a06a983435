"""Batches and tensors as plain data and numpy arrays, to send them between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tapml.distributed.trees import map_tree, pack_tree, unpack_tree
from tapml_targets.errors import InputError

_TENSOR: Final = "tensor"
# Formats that numpy lacks travel as integers of their width.
_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_SENDABLE: Final = frozenset(
    {
        torch.float16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)


def pack(value: Any, place: str) -> Any:
    """Plain data that :func:`unpack` restores.

    Raises
    ------
    InputError
        If a leaf is neither a dense tensor nor None, a number or text; `place` names it.
    """
    return pack_tree(value, place, _pack_leaf, "tensors")


def _pack_leaf(value: Any, place: str) -> dict[str, Any] | None:
    return pack_tensor(value, place) if isinstance(value, torch.Tensor) else None


def pack_tensor(tensor: torch.Tensor, place: str) -> dict[str, Any]:
    """A dense tensor as an array of the same bits."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InputError(f"{place} is not a dense tensor")
    plain = tensor.detach().to("cpu").contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if plain.dtype not in _SENDABLE:
        plain = plain.view(_INTEGERS[plain.element_size()])
    # numpy must own the memory: the tensor's may change before it is sent.
    return {_TENSOR: plain.numpy().copy(), "dtype": name}


def unpack(packed: Any) -> Any:
    """The value that :func:`pack` packed."""
    return unpack_tree(packed, unpack_tensor)


def unpack_tensor(packed: Mapping[str, Any]) -> torch.Tensor:
    """The tensor that :func:`pack_tensor` packed."""
    dtype: torch.dtype = getattr(torch, packed["dtype"])
    return torch.from_numpy(packed[_TENSOR]).view(dtype)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with every tensor changed."""
    return map_tree(value, lambda each: isinstance(each, torch.Tensor), change)


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """The values of a tensor as an array that numpy can compute with; a copy.

    Formats below float32 that numpy lacks become float32, which holds all their values; complex
    numbers become pairs. Sparse tensors become dense.
    """
    plain = tensor.detach().to("cpu")
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if plain.dtype not in _SENDABLE:
        plain = plain.to(torch.float32)
    return np.array(plain.contiguous().numpy())
