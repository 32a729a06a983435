"""Two groups of processes, as two machines have them, meet as the ranks of one run."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tapml.distributed.machines.meeting import meet
from tapml.distributed.machines.tunnel import address_of
from tapml.isolate.member import Member
from tapml.isolate.pool import Pool
from tapml_targets.errors import SetupError
from tests.distributed.conftest import CheckJob

_SUMMED = """
import torch.distributed as dist
def distribute(model, rank, world):
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    return model
"""


class _InTwoGroups:
    """Starts the ranks of a run in two groups of one pool."""

    def __init__(self, pool: Pool, folder: Path) -> None:
        self._pool, self._folder = pool, folder

    def group(self, size: int, job: str, payload: dict[str, Any], **options: Any) -> Any:
        if size == 1:
            return self._pool.group(size, job, payload, **options)
        with socket.create_server((address_of(0), 0)) as free:
            store = free.getsockname()[1]
        flag = self._folder / uuid.uuid4().hex
        common = {"size": size, "store": store, "gates": {}, "flag": str(flag), "ways": ""}
        half = size // 2
        return _Both(
            [
                self._pool.group(
                    half, job, {**payload, "part": {**common, "first": first}}, **options
                )
                for first in (0, half)
            ]
        )


class _Both:
    def __init__(self, halves: list[Future[list[Any]]]) -> None:
        self._halves = halves

    def result(self) -> list[Any]:
        return [each for half in self._halves for each in half.result()]


def test_ranks_in_two_groups_are_the_ranks_of_one_run(
    check_job: CheckJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def in_two_groups(pool: Pool, address: str, job: Path) -> Iterator[_InTwoGroups]:
        assert (address, job.name) == ("tcp://127.0.0.1:8786", "job.py")
        yield _InTwoGroups(pool, tmp_path)

    monkeypatch.setattr("tapml.distributed.checking.machine_groups", in_two_groups)
    found = check_job(_SUMMED, worlds=[4], engines=["own", "hsdp"], workers="tcp://127.0.0.1:8786")

    summed, hybrid = found.results
    assert (summed.outcome, summed.ranks) == ("inconsistent", (0, 1, 2, 3))
    assert summed.mistake == "gradients are summed over the ranks, not averaged"
    # Its pairs are process groups of their own, which are within and across the two.
    assert hybrid.outcome == "equal", hybrid.reason


def test_a_port_that_another_program_took_is_no_crash_of_the_job() -> None:
    with socket.create_server((address_of(0), 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} of the ranks' store was taken"):
            meet(Member(0, 2), {"store": port}, timedelta(seconds=1))
