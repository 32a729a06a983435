"""Operators that only move data: what they write is what they read, in another order.

Repeating the heads of a cache or transposing it writes megabytes in every decode step that hold
nothing new. Such an output is recorded as the order it takes from its input. Whether an operator is
of this kind is not guessed from its name but tried, once for its shapes: on numbered bits, which
show the order, and on random bits, which must come out in it.
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
class Order:
    """Element i of what is written is element ``indices[i]`` of what is read; uint32, flat."""

    indices: np.ndarray[Any, np.dtype[np.uint32]]
    itemsize: int

    def apply(self, source: Array) -> Array:
        """What an operator of this order writes where it reads `source`, as flat bytes."""
        code = _CODES[self.itemsize]
        return flat_bytes(flat_bytes(source).view(code).take(self.indices))


@dataclass(frozen=True)
class Movement:
    """A storage that one call site fills with the elements of `source`, a value, in an order."""

    source: int
    order: Order


class Functions(Protocol):
    """The reference: operators as functions over arrays."""

    def __getitem__(self, operator: str) -> Any:
        """The function of an operator."""


@dataclass
class Movements:
    """Finds operators that only move data; remembers what was tried.

    Parameters
    ----------
    functions
        Runs an operator to try it.
    """

    functions: Functions
    _orders: dict[tuple[object, ...], Order | None] = field(default_factory=dict)

    def find(self, program: Program) -> Mapping[str, Movement]:
        """Large storages of a program that hold nothing new, by name."""
        bound = program.bound
        writers: dict[str, int] = {}
        for call in bound.calls:
            for index in call.writes:
                name = bound.storage_of(index)
                writers[name] = writers.get(name, 0) + 1
        kept = {bound.values[name].storage for name in bound.after.values()}
        movements: dict[str, Movement] = {}
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
                movements[storage.name] = Movement(source.index, order)
        return movements

    def _order(self, call: BoundCall, source: BoundValue, target: BoundValue) -> Order | None:
        key = (call.step.operator, source.shape, target.shape)
        if key not in self._orders:
            self._orders[key] = self._try(call.step.operator, source, target)
        return self._orders[key]

    def _try(self, operator: str, source: BoundValue, target: BoundValue) -> Order | None:
        itemsize = dtype(source.dtype).itemsize
        code = _CODES.get(itemsize)
        count = source.nbytes // itemsize
        if code is None or count > 1 << (8 * min(itemsize, 4)):
            return None
        numbered = self._run(operator, source, target, np.arange(count, dtype=code))
        if int(numbered.max()) >= count:
            return None
        order = Order(numbered.astype(np.uint32), itemsize)
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
