"""A worker keeps what its factory made, until it is closed or dies."""

from __future__ import annotations

import signal

import pytest

from tapml.isolate.death import ChildDiedError
from tapml.isolate.pool import Pool
from tapml_targets.errors import InputError, LimitExceededError, ProtocolError, TapmlError
from tests.isolate.jobs import name, names
from tests.isolate.processes import PATIENCE_SECONDS, alive

OPEN, DEPOSIT, PROCESS = name("open_account"), name("deposit"), name("process_of")


def test_a_worker_keeps_its_state_between_calls(pool: Pool) -> None:
    with pool.worker(OPEN, 100) as account:
        assert account.call(DEPOSIT, 5) == 105
        assert account.call(DEPOSIT, 5) == 110


def test_calls_run_in_the_order_in_which_they_were_made(pool: Pool) -> None:
    with pool.worker(OPEN, 0) as account:
        balances = [account.submit(DEPOSIT, 1) for _ in range(50)]
        assert [balance.result(PATIENCE_SECONDS) for balance in balances] == list(range(1, 51))


def test_workers_do_not_take_the_places_of_jobs(pool: Pool) -> None:
    workers = [pool.worker(OPEN, number) for number in range(pool.workers + 1)]
    assert pool.submit(name("echo"), 1).result(PATIENCE_SECONDS) == 1
    assert [worker.call(DEPOSIT, 10) for worker in workers] == [10, 11, 12]
    for worker in workers:
        worker.close()


def test_an_error_of_a_call_leaves_the_worker_as_it_was(pool: Pool) -> None:
    with pool.worker(OPEN, 1) as account:
        with pytest.raises(TapmlError, match="ValueError: a deposit is not negative"):
            account.call(DEPOSIT, -1)
        assert account.call(DEPOSIT, 1) == 2


def test_every_call_says_why_the_factory_failed(pool: Pool) -> None:
    with pool.worker(name("refuse"), "no room for the model") as worker:
        for _ in range(2):
            with pytest.raises(LimitExceededError, match="no room for the model"):
                worker.call(DEPOSIT, 1)


def test_after_a_crash_every_call_says_how_the_worker_died(pool: Pool) -> None:
    with pool.worker(OPEN, 1) as account:
        calls = [account.submit(name("crash_with")), account.submit(DEPOSIT, 1)]
        for call in calls:
            with pytest.raises(ChildDiedError, match="SIGSEGV") as caught:
                call.result(PATIENCE_SECONDS)
        with pytest.raises(ChildDiedError, match="about to read address zero"):
            account.call(DEPOSIT, 1)
    assert caught.value.report.job == name("crash_with")
    assert caught.value.report.signal_number == signal.SIGSEGV


def test_a_call_has_its_own_deadline(pool: Pool) -> None:
    with pool.worker(OPEN, 1) as account:
        process = account.call(PROCESS)
        with pytest.raises(ChildDiedError, match=r"'tests.isolate.jobs:hang_with' did not finish"):
            account.call(name("hang_with"), deadline_seconds=0.2)
        assert not alive(process)


def test_a_factory_has_the_workers_deadline(pool: Pool) -> None:
    with (
        pool.worker(name("hang"), deadline_seconds=0.2) as worker,
        pytest.raises(ChildDiedError, match=r"'tests.isolate.jobs:hang' did not finish within"),
    ):
        worker.call(DEPOSIT, 1)


def test_a_worker_that_writes_to_its_socket_is_ended(pool: Pool) -> None:
    with pool.worker(OPEN, 1) as account:
        process = account.call(PROCESS)
        calls = [account.submit(name("babble_with")), account.submit(DEPOSIT, 1)]
        for call in calls:
            with pytest.raises(ProtocolError, match="a message"):
                call.result(PATIENCE_SECONDS)
        with pytest.raises(ProtocolError, match="a message"):
            account.call(DEPOSIT, 1)
    assert not alive(process)


def test_an_idle_worker_has_no_deadline(pool: Pool) -> None:
    with pool.worker(OPEN, 1, deadline_seconds=1.0) as account:
        account.call(DEPOSIT, 1)
        with pytest.raises(ChildDiedError):
            pool.submit(name("hang"), deadline_seconds=1.1).result(PATIENCE_SECONDS)
        assert account.call(DEPOSIT, 1) == 3


def test_closing_ends_the_process_and_the_call_under_way(pool: Pool) -> None:
    account = pool.worker(OPEN, 1)
    process = account.call(PROCESS)
    hanging = account.submit(name("hang_with"))
    account.close()
    assert not alive(process)
    with pytest.raises(ChildDiedError, match="its pool or worker was closed"):
        hanging.result(PATIENCE_SECONDS)
    with pytest.raises(ChildDiedError, match="its pool or worker was closed"):
        account.call(DEPOSIT, 1)
    account.close()


def test_a_worker_ends_with_its_pool() -> None:
    with Pool(names()) as pool:
        account = pool.worker(OPEN, 1)
        process = account.call(PROCESS)
    assert not alive(process)
    with pytest.raises(InputError, match="the pool is closed"):
        account.call(DEPOSIT, 1)
    account.close()
