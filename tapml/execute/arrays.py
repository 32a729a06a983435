"""Host memory for tensors: aligned allocations and windows into them, without copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tapml_targets.dtype import dtype

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]

# TVM's generated code assumes this alignment of every tensor.
ALIGNMENT: Final = 64


def allocate(nbytes: int) -> Bytes:
    """Zeroed, aligned host memory.

    Zeroed because hashes of shared memory include the gaps between its tensors.
    """
    memory = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    offset = -address(memory) % ALIGNMENT
    return memory[offset : offset + nbytes]


def address(array: Array) -> int:
    """Address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def window(memory: Array, byte_offset: int, shape: tuple[int, ...], dtype_name: str) -> Array:
    """A tensor inside `memory`, which it shares.

    Parameters
    ----------
    memory
        C-contiguous.
    byte_offset
        First byte of the tensor.
    dtype_name
        A name of :mod:`tapml_targets.dtype`; the result has the numpy dtype of its raw bits.
    """
    return np.ndarray(shape, dtype(dtype_name).numpy_name, memory, byte_offset)


def flat_bytes(array: Array) -> Bytes:
    """The bytes of a C-contiguous array, sharing its memory."""
    return array.reshape(-1).view(np.uint8)


def aligned(array: Array) -> Array:
    """`array` if it is contiguous and aligned, else an aligned copy."""
    if array.flags.c_contiguous and address(array) % ALIGNMENT == 0:
        return array
    memory = allocate(array.nbytes)
    copy: Array = np.ndarray(array.shape, array.dtype, memory)
    copy[...] = array
    return copy


class AlignedArrays(Mapping[str, Array]):
    """Arrays by name, aligned at first access.

    Weights may be memory-mapped from a file of gigabytes with unaligned tensors; a process that
    never runs an operator should not copy them.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self._aligned: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        array = self._aligned.get(name)
        if array is None:
            array = self._aligned[name] = aligned(self._arrays[name])
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
