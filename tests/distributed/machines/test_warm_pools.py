"""Pools that a worker keeps: shared or lent to one, forgotten when closed, few of them idle."""

from __future__ import annotations

from typing import Any

import pytest

from tapml.distributed.machines.warm_pools import MOST_IDLE, WarmPools


class _Pool:
    """A pool without processes."""

    closed = False

    def close(self) -> None:
        self.closed = True


def _pools(*, alone: bool) -> WarmPools[str]:
    made: Any = lambda key: _Pool()  # noqa: E731
    return WarmPools(made, alone=alone)


def test_a_pool_stays_warm_and_tasks_share_it() -> None:
    pools = _pools(alone=False)
    with pools.lend("a") as first, pools.lend("a") as second:
        assert first is second
    with pools.lend("a") as third:
        assert third is first


def test_a_task_that_may_close_its_pool_has_it_alone() -> None:
    pools = _pools(alone=True)
    with pools.lend("a") as first, pools.lend("a") as second:
        assert first is not second
        first.close()
    assert not second.closed
    with pools.lend("a") as third, pools.lend("a") as fourth:
        assert third is second
        assert fourth is not first


def test_pools_that_nobody_uses_are_closed_the_oldest_first() -> None:
    pools = _pools(alone=True)
    used = []
    for key in "abcdef":
        with pools.lend(key) as pool:
            used.append(pool)
        assert [each.closed for each in used].count(False) <= MOST_IDLE
    assert [each.closed for each in used] == [True] * 4 + [False] * 2


def test_a_pool_is_forgotten_after_an_error_but_not_while_another_task_uses_it() -> None:
    pools = _pools(alone=False)
    with pools.lend("a") as pool:
        with pytest.raises(OSError, match="gone"), pools.lend("a"):
            raise OSError("gone")
        assert not pool.closed
    with pytest.raises(OSError, match="gone"), pools.lend("a"):
        raise OSError("gone")
    assert pool.closed
