"""Arenas: windows do not meet, contents come back, every byte around them is watched."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tapml.replaying.memory import GUARD_BYTES, Arena

sizes = st.lists(st.integers(0, 3 * GUARD_BYTES), max_size=6)
poisons = st.sampled_from([0xFF, 0x5A])


@given(sizes)
def test_every_tensor_is_aligned_and_has_a_whole_guard_band_on_either_side(
    nbytes: list[int],
) -> None:
    arena = Arena.of(nbytes)
    edges = [(0, 0), *((w.offset, w.offset + w.nbytes) for w in arena.windows)]
    edges.append((arena.nbytes, arena.nbytes))
    assert all(after[0] - before[1] >= GUARD_BYTES for before, after in itertools.pairwise(edges))
    assert all(window.offset % GUARD_BYTES == 0 for window in arena.windows)


@given(sizes, poisons, st.integers(0, 255))
def test_contents_come_back_and_the_rest_is_poison(
    nbytes: list[int], poison: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    contents = [generator.integers(0, 256, size, np.uint8) for size in nbytes]
    arena = Arena.of(nbytes)
    memory = arena.filled(poison, contents)
    for position, content in enumerate(contents):
        np.testing.assert_array_equal(arena.take(memory, position), content)
    assert arena.damaged(memory, poison) == ()
    assert int((memory == poison).sum()) == arena.nbytes - sum(
        int((content != poison).sum()) for content in contents
    )


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4), poisons, st.data())
def test_any_byte_written_outside_is_noticed_and_none_inside(
    nbytes: list[int], poison: int, data: st.DataObject
) -> None:
    arena = Arena.of(nbytes)
    memory = arena.filled(poison, [None] * len(nbytes))
    at = data.draw(st.integers(0, arena.nbytes - 1))
    memory[at] ^= 1
    inside = [w for w in arena.windows if w.offset <= at < w.offset + w.nbytes]
    before = sum(w.offset + w.nbytes <= at for w in arena.windows) - 1
    assert arena.damaged(memory, poison) == (() if inside else ((before, 1),))
