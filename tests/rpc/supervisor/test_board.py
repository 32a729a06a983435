"""The words of a session: there until it ends, and no trap for whoever looks too late."""

from __future__ import annotations

from tapml_rpc import wire
from tapml_rpc.supervisor.board import JOURNAL_BYTES, Board, LastCommands, make_board


def test_a_session_that_has_ended_holds_and_runs_nothing() -> None:
    board = Board(make_board())
    board.device_bytes = 4096
    board.begin(3, 1, 2_000_000_000)
    assert (board.device_bytes, board.running()) == (4096, (3, 1, 2.0))
    board.close()
    assert (board.device_bytes, board.running()) == (0, None)


def test_the_last_batches_are_there_and_no_half_of_an_earlier_one() -> None:
    memory = memoryview(bytearray(JOURNAL_BYTES))
    worker, supervisor = LastCommands(memory), LastCommands(memory)
    for sequence in range(200):
        padding = [b"x" * 250_000] * (sequence % 4)
        commands = [["fill", sequence, 0, 8, b"a"]]
        worker.add(sequence, wire.pack({"commands": commands, "padding": padding}))
        assert supervisor.name(sequence, 0).startswith(f"fill({sequence}, ")
    report = supervisor.report(None)
    assert all(f"fill({sequence}, " in report for sequence in range(195, 200))
    assert supervisor.name(3, 0) == "command 0 of batch 3"


def test_what_a_worker_has_written_over_is_no_trap() -> None:
    memory = memoryview(bytearray(JOURNAL_BYTES))
    last = LastCommands(memory)
    last.add(1, b"not a header")
    assert last.name(1, 0) == "fence" and not last.report(None)
    memory[:64] = b"\xff" * 64
    assert last.name(1, 0) and isinstance(last.report((1, 0, 1.0)), str)
