"""Operators that only permute data: their output is their input in another order.

Repeating the heads of a KV cache or transposing it writes megabytes of redundant data in every
decode step. Such an output is recorded as a permutation of its input. Whether an operator permutes
is not inferred from its name but tested once per shape: on numbered bits, which reveal the
permutation, and on random bits, which confirm it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from tapml.execute.arrays import Array, allocate, flat_bytes, window
from tapml.execute.binding import BoundCall, BoundValue
from tapml.execute.program import Program
from tapml.execute.segments import LARGE_BYTES
from tapml_targets.dtype import dtype

_SEED: Final = 20240229
_CODES: Final[Mapping[int, np.dtype[Any]]] = {
    size: np.dtype(f"uint{8 * size}") for size in (2, 4, 8)
}


@dataclass(frozen=True, eq=False)
class Permutation:
    """Output element i is input element ``indices[i]``; uint32, flat."""

    indices: np.ndarray[Any, np.dtype[np.uint32]]
    itemsize: int

    def apply(self, source: Array) -> Array:
        """The operator's output for `source`, as flat bytes."""
        code = _CODES[self.itemsize]
        return flat_bytes(flat_bytes(source).view(code).take(self.indices))


@dataclass(frozen=True)
class PermutedStorage:
    """A storage that one call site fills with a permutation of the value `source`."""

    source: int
    order: Permutation


class Functions(Protocol):
    """The reference: operators as functions over arrays."""

    def __getitem__(self, operator: str) -> Any:
        """The function of an operator."""


@dataclass
class PermutationFinder:
    """Finds operators that only permute data, by running them; caches the results."""

    functions: Functions
    _orders: dict[tuple[object, ...], Permutation | None] = field(default_factory=dict)

    def find(self, program: Program) -> Mapping[str, PermutedStorage]:
        """Large storages of a program that hold permutations of other values, by name."""
        bound = program.bound
        writers: dict[str, int] = {}
        for call in bound.calls:
            for index in call.writes:
                name = bound.storage_of(index)
                writers[name] = writers.get(name, 0) + 1
        kept = {bound.values[name].storage for name in bound.after.values()}
        permuted: dict[str, PermutedStorage] = {}
        for call in bound.calls:
            if len(call.reads) != 1 or len(call.writes) != 1 or call.symbols:
                continue
            source, target = (bound.by_index[i] for i in (call.reads[0], call.writes[0]))
            storage = bound.storages[target.storage]
            if (
                storage.nbytes < LARGE_BYTES
                or target.nbytes != storage.nbytes
                or writers[storage.name] != 1
                or storage.name in kept
                or source.dtype != target.dtype
            ):
                continue
            order = self._order(call, source, target)
            if order is not None:
                permuted[storage.name] = PermutedStorage(source.index, order)
        return permuted

    def _order(self, call: BoundCall, source: BoundValue, target: BoundValue) -> Permutation | None:
        key = (call.step.operator, source.shape, target.shape)
        if key not in self._orders:
            self._orders[key] = self._try(call.step.operator, source, target)
        return self._orders[key]

    def _try(self, operator: str, source: BoundValue, target: BoundValue) -> Permutation | None:
        itemsize = dtype(source.dtype).itemsize
        code = _CODES.get(itemsize)
        count = source.nbytes // itemsize
        if code is None or count > 1 << (8 * min(itemsize, 4)):
            return None
        numbered = self._run(operator, source, target, np.arange(count, dtype=code))
        if int(numbered.max()) >= count:
            return None
        order = Permutation(numbered.astype(np.uint32), itemsize)
        random = np.frombuffer(np.random.default_rng(_SEED).bytes(source.nbytes), code)
        moved = self._run(operator, source, target, random)
        return order if np.array_equal(moved, random.take(order.indices)) else None

    def _run(self, operator: str, source: BoundValue, target: BoundValue, bits: Array) -> Array:
        read, written = allocate(source.nbytes), allocate(target.nbytes)
        read[:] = flat_bytes(bits)
        self.functions[operator](
            window(read, 0, source.shape, source.dtype),
            window(written, 0, target.shape, target.dtype),
        )
        return written.view(bits.dtype)
