"""The members of a group start and end together, and the one that failed first is named."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tapml.isolate.death import ChildDiedError, GroupDiedError, GroupReport
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml_targets.errors import InputError
from tests.isolate.jobs import name, names
from tests.isolate.processes import PATIENCE_SECONDS, alive, wait_until


def test_every_member_knows_its_rank_and_the_size_and_gets_the_payload(pool: Pool) -> None:
    results = pool.group(3, name("place"), {"seed": 1}).result(PATIENCE_SECONDS)
    assert results == [[rank, 3, 0, "", {"seed": 1}] for rank in range(3)]


def test_a_group_may_have_more_members_than_the_pool_runs_jobs(pool: Pool) -> None:
    results = pool.group(8, name("talk"), port=True).result(PATIENCE_SECONDS)
    assert results == ["greeted", *["hello"] * 7]


def test_members_meet_in_a_folder_that_is_removed_with_them(pool: Pool) -> None:
    files = pool.group(4, name("leave_files"), folder=True).result(PATIENCE_SECONDS)
    assert files == [["0", "1", "2", "3"]] * 4
    ((_, _, _, folder, _),) = pool.group(1, name("place"), folder=True).result(PATIENCE_SECONDS)
    assert folder
    assert not Path(folder).exists()


def test_every_member_gets_the_arrays(pool: Pool) -> None:
    array = np.arange(1 << 18)
    for *_, found in pool.group(3, name("place"), array).result(PATIENCE_SECONDS):
        np.testing.assert_array_equal(found, array, strict=True)


@pytest.mark.parametrize(
    ("by", "victims", "reason"),
    [
        ("crash", "raise", "was killed by SIGSEGV"),
        ("leave", "raise", "exited with code 7 and no result"),
        ("fail", "raise", "failed: KeyError: 7"),
        ("fail", "abort", "failed: KeyError: 7"),
    ],
)
def test_the_culprit_is_named_and_not_its_victims(
    pool: Pool, by: str, victims: str, reason: str
) -> None:
    for _ in range(3):
        report = _failure(pool, 4, "rely_on_rank", {"by": by, "victims": victims})
        assert (report.culprit, report.reason) == (0, reason)
        assert all(f"rank {rank} speaks" in tail for rank, tail in enumerate(report.tails))


def test_the_report_holds_the_culprits_death(pool: Pool) -> None:
    group = pool.group(2, name("rely_on_rank"), {"by": "crash", "victims": "raise"}, port=True)
    expected = r"^rank 0 of the group of 2 for .* was killed by SIGSEGV\nlast output of rank 0:\n"
    with pytest.raises(GroupDiedError, match=expected) as caught:
        group.result(PATIENCE_SECONDS)
    death = caught.value.report.death
    assert death is not None
    assert death.signal_number == signal.SIGSEGV
    assert isinstance(caught.value.__cause__, ChildDiedError)


def test_a_deadline_ends_all_and_says_who_had_answered(pool: Pool) -> None:
    # Until it was long enough for rank 0 to have answered.
    for seconds in (1.0, 10.0, 50.0):
        report = _failure(pool, 3, "hang_after_first", seconds=seconds)
        assert (report.culprit, report.reason) == (None, f"did not finish within {seconds:g} s")
        assert report.death is not None
        assert report.death.deadline_seconds == seconds
        if report.answered:
            break
    assert report.answered == (0,)
    assert report.tails == tuple(f"rank {rank} of 3" for rank in range(3))


def test_a_dead_member_takes_all_processes_along(pool: Pool, tmp_path: Path) -> None:
    group = pool.group(3, name("announce_member"), str(tmp_path), folder=True)
    wait_until(lambda: len(list(tmp_path.glob("*.note"))) == 3)
    notes = [path.read_text().split() for path in sorted(tmp_path.glob("*.note"))]
    os.kill(int(notes[1][0]), signal.SIGTERM)
    with pytest.raises(GroupDiedError, match=r"rank 1 of the group of 3 .* was killed by SIGTERM"):
        group.result(PATIENCE_SECONDS)
    assert not any(alive(int(pid)) for own, inner, _ in notes for pid in (own, inner))
    assert not Path(notes[0][2]).exists()


def test_closing_the_pool_ends_a_group_and_accuses_nobody() -> None:
    with Pool(names()) as pool:
        group = pool.group(2, name("announce_member"), "/nowhere", folder=True)
        hanging = pool.group(2, name("hang_with"))
        with pytest.raises(GroupDiedError, match="No such file"):
            group.result(PATIENCE_SECONDS)
    with pytest.raises(GroupDiedError, match="its pool or worker was closed") as caught:
        hanging.result(PATIENCE_SECONDS)
    assert caught.value.report.culprit is None


def test_a_group_starts_whole_or_not_at_all(pool: Pool) -> None:
    nowhere = Environment(python="/no/such/python")
    with pytest.raises(GroupDiedError, match=r"cannot start all members: .*/no/such/python"):
        pool.group(2, name("place"), environment=nowhere).result(PATIENCE_SECONDS)
    with pytest.raises(InputError, match="at least one member, got 0"):
        pool.group(0, name("place"))


def test_the_ranks_of_a_distributed_job_reduce_over_gloo(pool: Pool) -> None:
    environment = Environment(preload=("torch", "torch.distributed"))
    values = np.arange(4, dtype=np.float32)
    results = pool.group(
        4, name("sum_of_ranks"), values, folder=True, environment=environment
    ).result(2 * PATIENCE_SECONDS)
    for found in results:
        np.testing.assert_array_equal(found, values * 10, strict=True)


def _failure(
    pool: Pool, size: int, job: str, payload: object = None, seconds: float = PATIENCE_SECONDS
) -> GroupReport:
    group = pool.group(size, name(job), payload, port=True, deadline_seconds=seconds)
    with pytest.raises(GroupDiedError) as caught:
        group.result(2 * PATIENCE_SECONDS)
    return caught.value.report
