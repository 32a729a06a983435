"""What dies at the far end, over the binding that the tests of every run leave out."""

from __future__ import annotations

from pathlib import Path

from tests.offload.remote.end_to_end import test_faults as faults
from tests.offload.remote.served import Served
from tests.offload.sessions import FinishedSession

served = faults.served


def test_a_server_that_is_killed_and_started_again_goes_on_with_the_session(
    served: Served, finished: FinishedSession, tmp_path: Path
) -> None:
    faults.test_a_server_that_is_killed_and_started_again_goes_on_with_the_session(
        "tcp", served, finished, tmp_path
    )


def test_a_worker_that_is_killed_costs_the_run_and_the_next_one_finds_another(
    served: Served, finished: FinishedSession, tmp_path: Path
) -> None:
    faults.test_a_worker_that_is_killed_costs_the_run_and_the_next_one_finds_another(
        "ws", served, finished, tmp_path
    )
