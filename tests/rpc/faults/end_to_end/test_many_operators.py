"""After many operator tests there is what there was before the first."""

from __future__ import annotations

from scripts.soak_runtime import run_operator_tests
from tests.rpc.faults.ground import Served, nothing_left

# `python3 scripts/soak_runtime.py` runs ten times as many.
TESTS = 1000


def test_after_many_operator_tests_nothing_is_left(server: Served, binding: str) -> None:
    with server.connect(binding) as session:
        run_operator_tests(session, 10)
        # Not even while the session goes on.
        with nothing_left(server.books):
            run_operator_tests(session, TESTS)
        assert session.held_bytes == 0
        assert not session._queue.sent and session._link.drain()
