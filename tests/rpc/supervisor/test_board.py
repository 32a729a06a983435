"""The words of a session: there until it ends, and no trap for whoever looks too late."""

from __future__ import annotations

from tapml_rpc.supervisor.board import Board
from tapml_rpc.supervisor.ring import Ring, make_memory


def test_a_session_that_has_ended_holds_and_runs_nothing() -> None:
    ring = Ring(make_memory(4096, "test"))
    board = Board(ring)
    board.device_bytes = 4096
    board.begin(3, 1, 2_000_000_000)
    assert (board.device_bytes, board.running()) == (4096, (3, 1, 2.0))
    ring.close()
    assert (board.device_bytes, board.running()) == (0, None)
