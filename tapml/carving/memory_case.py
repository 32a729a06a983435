"""A carved test held in memory: of a repro folder or a bundle, or made from one."""

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

    It is never called a weight: weights are kept on the device from test to test, and there is one.
    """

    key: str
    lifetime: str = "activation"


@dataclass(frozen=True)
class MemoryCase:
    """A test whose tensors are in memory; what oracle and replay take in place of a suite's.

    Attributes
    ----------
    id
        Its name.
    key
        Identifies operator, inputs and outputs by content.
    operator
        Name of the operator.
    symbols
        Integers passed beside the tensors.
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
        """The tensors read, in parameter order."""
        return tuple(MemoryTensor(f"{self.key}/{index}") for index in range(len(self.arrays)))

    def read_inputs(self) -> list[Array]:
        """Raw inputs, in parameter order."""
        return list(self.arrays)

    def read_outputs(self) -> list[Array]:
        """The reference's raw outputs, in parameter order."""
        return list(self.results)


def content_key(operator_hash: str, symbols: Mapping[str, int], arrays: Sequence[Array]) -> str:
    """What identifies a test by content, hexadecimal."""
    digest = hashlib.sha256(operator_hash.encode())
    digest.update(repr(sorted(symbols.items())).encode())
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
