"""Which worker gets which ranks, and what is said of a run whose parts failed."""

from __future__ import annotations

import pytest

from tapml.distributed.machines.groups import shares_of
from tapml_targets.errors import SetupError


@pytest.mark.parametrize(
    ("world", "room", "counts"),
    [
        (4, {"a": None, "b": None}, [2, 2]),
        (3, {"a": None, "b": None}, [2, 1]),
        (2, {"a": None, "b": None, "c": None}, [1, 1]),
        (6, {"a": 1, "b": 8}, [1, 5]),
    ],
)
def test_ranks_are_spread_evenly_and_in_order(
    world: int, room: dict[str, int | None], counts: list[int]
) -> None:
    found = shares_of(world, room)

    assert [each.count for each in found] == counts
    assert [each.first for each in found] == [sum(counts[:place]) for place in range(len(counts))]


def test_ranks_without_room_are_refused() -> None:
    with pytest.raises(SetupError, match=r"4 ranks have no room: 2 workers may run 3; start more"):
        shares_of(4, {"a": 1, "b": 2})
