"""Which worker gets which ranks, and what is said of a run whose parts failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tapml.distributed.machines.groups import MachineGroups, shares_of
from tapml.isolate.death import GroupDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
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


class _Client:
    """A client of Dask whose scheduler is gone, or whose worker's task has failed."""

    status = "error"

    def __init__(self, *, takes: bool) -> None:
        self.takes = takes

    def scheduler_info(self, **_: Any) -> dict[str, Any]:
        return {"workers": {"tls://one:1": {"resources": {}}}}

    def submit(self, *_: Any, **__: Any) -> Any:
        if not self.takes:
            raise RuntimeError("Client is closed. Can't send update-graph message.\nmore")
        return self

    def result(self, _: float) -> bytes:
        raise TimeoutError

    def cancel(self, _: Any) -> None:
        raise RuntimeError("Client is closed")


@pytest.mark.parametrize(
    ("takes", "said"),
    [
        (False, "the scheduler takes no work: Client is closed. Can't send update-graph message."),
        (True, "the worker tls://one:1 failed: TimeoutError"),
    ],
)
def test_a_run_whose_cluster_fails_is_not_started_and_says_why(
    tmp_path: Path, takes: bool, said: str
) -> None:
    groups = MachineGroups(cast(Pool, None), _Client(takes=takes), tmp_path / "job.py")
    future = groups.group(
        2, "job", {}, folder=True, environment=Environment(), deadline_seconds=600
    )

    with pytest.raises(GroupDiedError) as failed:
        future.result(10)
    groups.close()
    assert isinstance(failed.value.__cause__, SetupError)
    assert str(failed.value.__cause__) == said
