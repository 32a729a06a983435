"""A carved test in memory: from a repro folder or a bundle, or derived from one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class MemoryTensor:
    """A tensor of such a test.

    Its lifetime is never ``weight``, because replay keeps weights on the device between tests.
    """

    key: str
    lifetime: str = "activation"


@dataclass(frozen=True)
class MemoryCase:
    """A test with its tensors in memory; oracles and replay take it like a suite's test.

    Attributes
    ----------
    key
        Hash of operator, inputs and outputs by content.
    symbols
        Integer arguments.
    arrays
        Raw inputs, in parameter order.
    results
        The reference's raw outputs, in parameter order.
    """

    id: str
    key: str
    operator: str
    symbols: Mapping[str, int]
    arrays: tuple[Array, ...] = field(repr=False)
    results: tuple[Array, ...] = field(repr=False)

    @property
    def inputs(self) -> tuple[MemoryTensor, ...]:
        """The input tensors, in parameter order."""
        return tuple(MemoryTensor(f"{self.key}/{index}") for index in range(len(self.arrays)))

    def read_inputs(self) -> list[Array]:
        """Raw inputs, in parameter order."""
        return list(self.arrays)

    def read_outputs(self) -> list[Array]:
        """The reference's raw outputs, in parameter order."""
        return list(self.results)


def content_key(operator_hash: str, symbols: Mapping[str, int], arrays: Sequence[Array]) -> str:
    """Content hash of a test, hexadecimal."""
    digest = hashlib.sha256(operator_hash.encode())
    digest.update(repr(sorted(symbols.items())).encode())
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
