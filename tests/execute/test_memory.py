"""Host memory is used again only when nobody holds an array in it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tapml.execute.arrays import ALIGNMENT, Bytes, address
from tapml.execute.memory import HostMemory


def test_memory_that_is_held_is_not_given_out_again() -> None:
    memory = HostMemory()
    first = memory.acquire("a", 128, dense=True)
    view = first[64:].view(np.float32).reshape(4, 4)
    where = address(first)
    del first
    second = memory.acquire("a", 128, dense=True)
    assert address(second) != where
    del view
    assert where in {address(memory.acquire("a", 128, dense=True)) for _ in range(3)}


def test_blocks_of_a_strip_lie_one_after_the_other() -> None:
    memory = HostMemory()
    blocks = [memory.acquire("a", 192, dense=False, strip=4) for _ in range(8)]
    starts = [address(block) for block in blocks]
    for strip in (starts[:4], starts[4:]):
        assert np.diff(strip).tolist() == [192] * 3
    assert all(block.base is blocks[0].base for block in blocks[:4])


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 9)), max_size=60))
def test_two_users_never_share_memory(actions: list[tuple[int, bool, int]]) -> None:
    memory = HostMemory()
    held: list[tuple[Bytes, int]] = []
    for number, (key, release, which) in enumerate(actions):
        if release and held:
            held.pop(which % len(held))
        block = memory.acquire(key, 64 * (key + 1), dense=True, strip=key + 1)
        assert address(block) % ALIGNMENT == 0
        block[:] = number % 251
        held.append((block, number % 251))
    for block, value in held:
        assert (block == value).all()


def test_unwritten_bytes_stay_zero() -> None:
    memory = HostMemory()
    for _ in range(3):
        block = memory.acquire("a", 256, dense=False, strip=2)
        assert not block[100:].any()
        block[:100] = 7
        del block
