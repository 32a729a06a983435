"""Memory shared by two ends: what is placed is seen, room is taken and given back in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_rpc.supervisor.pipe import Ring, make_memory
from tapml_targets.errors import ProtocolError

NBYTES = 4096


@pytest.fixture
def ends() -> Iterator[tuple[Ring, Ring]]:
    memory = make_memory(NBYTES, "test")
    ours, theirs = Ring(os.dup(memory)), Ring(memory)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_what_one_end_places_the_other_sees(ends: tuple[Ring, Ring]) -> None:
    ours, theirs = ends
    room = ours.reserve(5)
    assert room is not None
    room[1][:] = b"bytes"
    assert bytes(theirs.view(room[0], 5)) == b"bytes"


def test_a_full_ring_has_room_again_once_pieces_are_released(ends: tuple[Ring, Ring]) -> None:
    ours, theirs = ends
    first = ours.reserve(NBYTES)
    assert first is not None and ours.reserve(1) is None
    theirs.release(first[0], NBYTES)
    assert ours.reserve(NBYTES) is not None


def test_a_place_that_cannot_be_is_refused(ends: tuple[Ring, Ring]) -> None:
    with pytest.raises(ProtocolError, match="do not lie in a ring"):
        ends[1].view(NBYTES - 1, 2)


def test_a_payload_that_leaves_after_its_sessions_end_disturbs_nobody() -> None:
    ring = Ring(make_memory(NBYTES, "test"))
    room = ring.reserve(8)
    assert room is not None
    ring.close()
    ring.release(room[0], 8)


def test_the_memory_of_a_closed_end_goes_with_the_last_who_reads_it() -> None:
    def descriptors() -> int:
        named = (str(each.resolve()) for each in Path("/proc/self/fd").iterdir())
        return sum("tapml-of-this-test" in name for name in named)

    ring = Ring(make_memory(NBYTES, "of-this-test"))
    room = ring.reserve(8)
    assert room is not None
    ring.close()
    room[1][:] = b"payload!"
    assert descriptors() == 1
    del room
    assert descriptors() == 0


def test_an_empty_ring_begins_again_in_memory_that_was_used_before(
    ends: tuple[Ring, Ring],
) -> None:
    ours, theirs = ends
    for _ in range(20):
        starts = [room[0] for _ in range(3) if (room := ours.reserve(1000)) is not None]
        assert [start % NBYTES for start in starts] == [0, 1024, 2048]
        theirs.release(starts[-1], 1000)


def test_what_a_piece_does_not_need_is_room_for_the_next(ends: tuple[Ring, Ring]) -> None:
    ours, theirs = ends
    first = ours.reserve(NBYTES)
    assert first is not None
    ours.trim(first[0], 100)
    second = ours.reserve(NBYTES - 128)
    assert second is not None and second[0] == first[0] + 128
    theirs.release(first[0], 100)
    assert ours.reserve(128) is not None


@given(st.lists(st.tuples(st.integers(1, NBYTES // 2), st.integers(0, 3)), max_size=60))
def test_pieces_on_their_way_never_overlap(sizes: list[tuple[int, int]]) -> None:
    memory = make_memory(NBYTES, "test")
    ours, theirs = Ring(os.dup(memory)), Ring(memory)
    on_their_way: list[tuple[int, int, bytes]] = []

    def receive() -> None:
        start, size, content = on_their_way.pop(0)
        assert bytes(theirs.view(start, size)) == content
        theirs.release(start, size)

    for number, (nbytes, received) in enumerate(sizes):
        for _ in range(min(received, len(on_their_way))):
            receive()
        while (room := ours.reserve(nbytes)) is None:
            receive()
        content = bytes([number % 256]) * nbytes
        room[1][:] = content
        on_their_way.append((room[0], nbytes, content))
    assert all(bytes(theirs.view(start, size)) == content for start, size, content in on_their_way)
    room = None
    ours.close()
    theirs.close()
