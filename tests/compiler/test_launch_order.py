"""Launches come together without any two that conflict changing places."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tapml.compiler.launch_order import Access, grouped

MEMORIES = st.frozensets(st.sampled_from("abcdef"), max_size=3)
ACCESSES = st.lists(st.builds(Access, MEMORIES, MEMORIES), max_size=30)


def _always(_members: Sequence[int], _index: int) -> bool:
    return True


@given(ACCESSES, st.lists(st.integers(0, 2), min_size=30, max_size=30), st.integers(1, 40))
def test_conflicting_launches_keep_their_order(
    accesses: list[Access], kinds: list[int], window: int
) -> None:
    groups = grouped(accesses, lambda members, i: kinds[members[0]] == kinds[i], window)
    assert sorted(index for group in groups for index in group) == list(range(len(accesses)))
    place = {index: at for at, group in enumerate(groups) for index in group}
    for later, access in enumerate(accesses):
        for earlier in range(later):
            if access.conflicts(accesses[earlier]):
                assert place[earlier] < place[later]
    for group in groups:
        assert len({kinds[index] for index in group}) == 1


def _reads(*names: str) -> frozenset[str]:
    return frozenset(names)


def test_three_readers_of_one_tensor_come_together() -> None:
    accesses = [Access(_reads("x"), _reads(name)) for name in "qkv"]
    assert grouped(accesses, _always) == ((0, 1, 2),)


def test_a_launch_goes_up_past_what_it_does_not_wait_for() -> None:
    q, then, k = (
        Access(_reads("x"), _reads("q")),
        Access(_reads("q"), _reads("r")),
        Access(_reads("x"), _reads("k")),
    )
    assert grouped([q, then, k], _always) == ((0, 2), (1,))


def test_a_launch_that_nobody_waits_for_yet_goes_down_to_its_like() -> None:
    mask, first, second = (
        Access(_reads("m"), _reads("a")),
        Access(_reads("x"), _reads("y")),
        Access(_reads("y"), _reads("z")),
    )
    likes = {(0, 2)}
    assert grouped([mask, first, second], lambda members, i: (members[0], i) in likes) == (
        (1,),
        (0, 2),
    )


def test_memory_written_twice_keeps_both_writers_apart() -> None:
    accesses = [Access(_reads("x"), _reads("y")), Access(_reads("w"), _reads("y"))]
    assert grouped(accesses, _always) == ((0,), (1,))
    over = [Access(_reads("y"), _reads("z")), Access(_reads("x"), _reads("y"))]
    assert grouped(over, _always) == ((0,), (1,))


def test_nothing_passes_more_groups_than_the_window() -> None:
    chain = [Access(_reads(str(n)), _reads(str(n + 1))) for n in range(5)]
    free = Access(_reads("m"), _reads("o"))
    assert grouped([*chain, free], _always, window=5)[0] == (0, 5)
    assert grouped([*chain, free], _always, window=2)[3] == (3, 5)
