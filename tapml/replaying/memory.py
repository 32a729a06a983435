"""Device memory of replays: guarded, poisoned, and reused between tests.

All input tensors of a test are in one buffer and all outputs in another, each between guard bands,
so that a test needs few commands however many tensors it has. There are two buffers because some
platforms bind a buffer either for reading or for writing. Weights stay resident.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml_rpc.client import Session
from tapml_rpc.remote import RemoteBuffer
from tapml_rpc.session import Batch
from tapml_targets.errors import LimitExceededError

Bytes = NDArray[np.uint8]

GUARD_BYTES: Final = 4096
"""Size of a guard band, and the alignment of every tensor: sufficient for every platform."""
POISONS: Final = (0xFF, 0x5A)
"""Byte that fills outputs and guard bands before a run: NaN (or -1) in the first run, large
numbers in the next, so that reading either changes the result."""
_KEPT_WEIGHT_BYTES: Final = 1 << 30
# Buffers up to this size grow in powers of two, so that few tests need a new one.
_LARGE_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class Window:
    """The place of a tensor in an arena, in bytes."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class Arena:
    """Tensors in one buffer with guard bands before, between and after them."""

    windows: tuple[Window, ...]
    nbytes: int

    @staticmethod
    def of(sizes: Sequence[int]) -> Arena:
        """An arena for tensors of `sizes` bytes."""
        windows = []
        offset = GUARD_BYTES
        for size in sizes:
            windows.append(Window(offset, size))
            offset += -(-size // GUARD_BYTES) * GUARD_BYTES + GUARD_BYTES
        return Arena(tuple(windows), offset)

    @property
    def bands(self) -> tuple[tuple[int, int], ...]:
        """First byte and end of each guard band: before the first tensor, and after each."""
        starts = [0, *(window.offset + window.nbytes for window in self.windows)]
        ends = [*(window.offset for window in self.windows), self.nbytes]
        return tuple(zip(starts, ends, strict=True))

    def filled(self, poison: int, contents: Sequence[NDArray[Any] | None]) -> Bytes:
        """The arena's bytes: `contents` if given, poison elsewhere."""
        memory = np.full(self.nbytes, poison, np.uint8)
        for window, content in zip(self.windows, contents, strict=True):
            if content is not None:
                memory[window.offset : window.offset + window.nbytes] = _flat(content)
        return memory

    def damaged(self, memory: Bytes, poison: int) -> tuple[tuple[int, int], ...]:
        """Guard bands that were overwritten.

        Returns
        -------
        tuple of (int, int)
            Per damaged band the index of the tensor before it (-1 for none) and the changed bytes.
        """
        found = []
        for position, (start, end) in enumerate(self.bands):
            band = memory[start:end]
            # Two passes over four kilobytes are faster than the boolean array of one.
            if band.size and (band.min() != poison or band.max() != poison):
                found.append((position - 1, int((band != poison).sum())))
        return tuple(found)

    def surround(self, memory: Bytes, poison: int) -> None:
        """Fill the guard bands of `memory` with another poison."""
        for start, end in self.bands:
            memory[start:end] = poison

    def take(self, memory: Bytes, position: int) -> Bytes:
        """Bytes of one tensor."""
        window = self.windows[position]
        return memory[window.offset : window.offset + window.nbytes]


@dataclass
class _Weight:
    """A resident weight; `values` should be on the device, between guard bands of the poison.

    `values` are mapped from the suite's packs, not copied.
    """

    buffer: RemoteBuffer
    arena: Arena
    values: NDArray[Any]
    poison: int = 0
    used: bool = True


def _keep() -> None:
    """Default for `reclaim`: no other memory can be freed."""


class ReplayMemory:
    """Buffers of one session that replays share: two arenas, and weights by content.

    A context manager. Sharing one between the operators of a session uploads each weight once.

    Parameters
    ----------
    limit_bytes
        Limit on all buffers of the session together; 0 for none. The least recently used weights
        are evicted.

    Attributes
    ----------
    uploaded_bytes
        Bytes of weights sent so far, including guard bands.
    reclaim
        Called if eviction is not enough, to free other cached memory of the session.
    """

    def __init__(self, session: Session, limit_bytes: int = 0) -> None:
        self.session = session
        self.limit_bytes = limit_bytes
        self.uploaded_bytes = 0
        self.reclaim: Callable[[], None] = _keep
        self._arenas: dict[str, RemoteBuffer] = {}
        self._weights: OrderedDict[str, _Weight] = OrderedDict()
        self._weight_bytes = 0
        self._changed: list[str] = []
        self._taken: set[str] = set()

    def __enter__(self) -> ReplayMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free all device memory."""
        for buffer in self._arenas.values():
            self.session.free(buffer)
        for weight in self._weights.values():
            self.session.free(weight.buffer)
        self._arenas.clear()
        self._weights.clear()
        self._weight_bytes = 0

    def forget(self) -> None:
        """Drop everything after a failed command, and clear the failure.

        After a failure the stream skips allocations and writes, so the device's content is unknown.
        Nothing may be in use.
        """
        self.close()
        self.session.reset()

    def arena_buffer(self, purpose: str, nbytes: int) -> RemoteBuffer:
        """A buffer of at least `nbytes` bytes for `purpose`, with undefined content.

        Raises
        ------
        LimitExceededError
            If the device cannot have a buffer of that size, or has no memory left for it.
        """
        kept = self._arenas.get(purpose)
        if kept is not None and kept.nbytes >= nbytes:
            return kept
        limit = self._check_size(nbytes)
        if kept is not None:
            self.session.free(self._arenas.pop(purpose))
        size = max(1 << 16, 1 << (nbytes - 1).bit_length())
        if size > _LARGE_BYTES or (self.limit_bytes and size > self._room()):
            size = nbytes
        self._make_room(size)
        self._arenas[purpose] = self.session.allocate(min(size, limit) if limit else size)
        return self._arenas[purpose]

    def weight(self, key: str, values: NDArray[Any]) -> tuple[RemoteBuffer, int]:
        """The resident copy of a weight: its buffer and the offset of its first byte.

        It stays until :meth:`evict` is called before the next test.

        Raises
        ------
        LimitExceededError
            If the device cannot have a buffer of that size, or has no memory left for it.
        """
        self._taken.add(key)
        weight = self._weights.get(key)
        if weight is None:
            arena = Arena.of([values.nbytes])
            self._check_size(arena.nbytes)
            self._make_room(arena.nbytes)
            buffer = self.session.allocate(arena.nbytes)
            self._send(buffer, arena, values)
            self.uploaded_bytes += arena.nbytes
            weight = _Weight(buffer, arena, values)
            self._weights[key] = weight
            self._weight_bytes += arena.nbytes
        weight.used = True
        self._weights.move_to_end(key)
        return weight.buffer, GUARD_BYTES

    def _send(self, buffer: RemoteBuffer, arena: Arena, values: NDArray[Any]) -> None:
        """Write a weight between guard bands; a large one is not copied here."""
        if arena.nbytes <= _LARGE_BYTES:
            self.session.write(buffer, arena.filled(POISONS[0], [values]))
            return
        for start, end in arena.bands:
            self.session.fill(buffer, bytes([POISONS[0]]), end - start, start)
        self.session.write(buffer, _flat(values), GUARD_BYTES)

    def poison_around(self, batch: Batch, buffer: RemoteBuffer, arena: Arena, poison: int) -> None:
        """Fill the guard bands of an arena on the device, as a part of `batch`."""
        for start, end in arena.bands:
            batch.fill(buffer, bytes([poison]), end - start, start)

    def poison_around_weight(self, batch: Batch, key: str) -> None:
        """Switch the guard bands of a resident weight to the other poison, as a part of `batch`."""
        weight = self._weights[key]
        weight.poison = 1 - weight.poison
        self.poison_around(batch, weight.buffer, weight.arena, POISONS[weight.poison])

    def evict(self) -> None:
        """Evict the least recently used weights until the rest is within the limit.

        No test may be running. Weights that kernels may have modified are checked first.
        """
        self._taken.clear()
        while self._weight_bytes > _KEPT_WEIGHT_BYTES and len(self._weights) > 1:
            self._evict(next(iter(self._weights)))

    def changed_weights(self) -> tuple[str, ...]:
        """Keys of weights that kernels modified since the last call; they are uploaded again.

        Reads back every used weight, and is therefore called once per operator.
        """
        used = [(key, weight) for key, weight in self._weights.items() if weight.used]
        changed, self._changed = self._changed, []
        for key, weight in used:
            weight.used = False
            if self._is_changed(weight):
                changed.append(key)
                self._drop(key)
        return tuple(changed)

    def _make_room(self, nbytes: int) -> None:
        """Free memory that the current test does not need until `nbytes` more fit.

        Raises
        ------
        LimitExceededError
            If they do not fit even then.
        """
        if not self.limit_bytes:
            return
        others = [key for key in self._weights if key not in self._taken]
        while nbytes > self._room() and others:
            self._evict(others.pop(0))
        if nbytes > self._room():
            self.reclaim()
        if nbytes > self._room():
            need = self.session.held_bytes + nbytes
            raise LimitExceededError(
                f"replaying this test needs {need} bytes of the device's memory, guard bands "
                f"included; the limit is {self.limit_bytes} on {self.session.device.name}"
            )

    def _room(self) -> int:
        return self.limit_bytes - self.session.held_bytes

    def _evict(self, key: str) -> None:
        weight = self._weights[key]
        if weight.used and self._is_changed(weight):
            self._changed.append(key)
        self._drop(key)

    def _check_size(self, nbytes: int) -> int:
        """Check `nbytes` against the device's buffer limit; return the limit, 0 for none."""
        limit = self.session.device.limits.max_buffer_bytes
        if limit and nbytes > limit:
            raise LimitExceededError(
                f"replaying this test needs a buffer of {nbytes} bytes, guard bands included; "
                f"{self.session.device.name} has buffers of at most {limit}"
            )
        return limit

    def _is_changed(self, weight: _Weight) -> bool:
        """Whether the device has other bytes in a weight or around it; a part is read at a time."""
        arena, values, poison = weight.arena, _flat(weight.values), POISONS[weight.poison]
        if arena.nbytes <= _LARGE_BYTES:
            found = np.frombuffer(self.session.read(weight.buffer), np.uint8)
            return bool(arena.damaged(found, poison)) or not np.array_equal(
                arena.take(found, 0), values
            )
        bands = (self._part(weight, start, end - start) for start, end in arena.bands)
        return any((band != poison).any() for band in bands) or not all(
            np.array_equal(
                part := values[start : start + _LARGE_BYTES],
                self._part(weight, GUARD_BYTES + start, part.size),
            )
            for start in range(0, values.size, _LARGE_BYTES)
        )

    def _part(self, weight: _Weight, start: int, nbytes: int) -> Bytes:
        return np.frombuffer(self.session.read(weight.buffer, nbytes, start), np.uint8)

    def _drop(self, key: str) -> None:
        weight = self._weights.pop(key)
        self._weight_bytes -= weight.arena.nbytes
        self.session.free(weight.buffer)


def _flat(values: NDArray[Any]) -> Bytes:
    """The bytes of an array, which are its own if it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
