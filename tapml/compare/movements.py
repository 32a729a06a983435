"""Seeded movements of a test's inputs by up to one unit in the last place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.formats import Float64s, as_float64, movable_ulp

_MOVED_BYTES: Final = 512 << 20
# A prime: no stride of a tensor meets the same numbers again.
_NOISE_LENGTH: Final = 1_000_003


class Movements:
    """Seeded movements of inputs; those of weights are kept, for many tests read them.

    Parameters
    ----------
    seed
        Of the random numbers; a movement depends on it, on the parameter's position, on the repeat
        and on nothing else.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._kept: OrderedDict[tuple[object, ...], Float64s] = OrderedDict()
        self._seen: set[tuple[object, ...]] = set()
        self._kept_bytes = 0

    def values(self, raw: NDArray[Any], dtype: str, key: str | None) -> Float64s:
        """`raw` as float64. `key` names a tensor that other tests share (its content hash)."""
        return self._keep((key, dtype, raw.shape), key, lambda: as_float64(raw, dtype))

    def units(self, values: Float64s, dtype: str, key: str | None) -> Float64s:
        """How far each of `values` may move: its ulp in `dtype`, zero where it stays."""
        return self._keep(
            (key, dtype, values.shape, "units"), key, lambda: movable_ulp(values, dtype)
        )

    def moved(
        self,
        values: Float64s,
        units: Float64s,
        dtype: str,
        position: int,
        repeat: int,
        key: str | None,
    ) -> Float64s:
        """`values` moved by half to one of their `units`, up or down, in movement `repeat`.

        `dtype` is the one the units are of.
        """
        return self._keep(
            (key, values.shape, dtype, position, repeat),
            key,
            lambda: self._move(values, units, position, repeat),
        )

    def _move(self, values: Float64s, units: Float64s, position: int, repeat: int) -> Float64s:
        start = (position * 104_729 + repeat * 350_377 + 1) % _NOISE_LENGTH
        numbers = _noise(self._seed)
        noise = numbers[start : start + values.size]
        if noise.size < values.size:
            noise = np.resize(np.roll(numbers, -start), values.size)
        moved: Float64s = noise.reshape(values.shape) * units
        moved += values
        return moved

    def _keep(
        self, name: tuple[object, ...], key: str | None, make: Callable[[], Float64s]
    ) -> Float64s:
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        made = make()
        # An activation is met once and a weight again and again: keep from the second sight on.
        if key is None or name not in self._seen:
            self._seen.add(name)
            return made
        self._kept[name] = made
        self._kept_bytes += made.nbytes
        while self._kept_bytes > _MOVED_BYTES and self._kept:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return made


@lru_cache(maxsize=2)
def _noise(seed: int) -> Float64s:
    """Numbers of size 0.5 to 1 and random sign, taken from a random start by each movement.

    Sizes differ so that two terms of one binade never cancel exactly. Drawing them takes longer
    than many a test, and a reduction makes an oracle for every candidate.
    """
    noise = np.random.Generator(np.random.SFC64(seed)).random(_NOISE_LENGTH)
    noise -= 0.5
    noise += np.copysign(0.5, noise)
    noise.flags.writeable = False
    return noise
