"""A command that is checked while it trains."""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tapml.cli.main import main
from tapml.invariants.following import LET_GO_BYTES, Following, let_go
from tapml.invariants.invariant import InvariantSet, write_set
from tapml.invariants.launch import collect
from tapml.invariants.online import check_command
from tapml.invariants.record import windows_of
from tapml.invariants.trace import Trace, TraceWriter
from tests.invariants.conftest import SCRIPT


def test_a_trace_that_grows_gives_the_steps_of_the_whole_one(clean: Trace, tmp_path: Path) -> None:
    (path,) = clean.folder.iterdir()
    content = path.read_bytes()
    ended = threading.Event()

    def write() -> None:
        with (tmp_path / path.name).open("wb", buffering=0) as file:
            for place in range(0, len(content), 4099):
                file.write(content[place : place + 4099])
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    found = list(Following(tmp_path).windows(ended.is_set))
    writer.join()
    whole = list(windows_of(clean.processes))
    assert [each.step for each in found] == [each.step for each in whole]
    assert [len(each.records) for each in found] == [len(each.records) for each in whole]


def test_all_ranks_of_a_job_are_followed_together_in_their_order(
    clean: Trace, tmp_path: Path
) -> None:
    (rows,) = clean.processes
    for name, rank in (("process-1", 1), ("process-2", 0)):
        writer = TraceWriter(tmp_path)
        mine = [
            row._replace(rank=rank, context={**row.context, "world": 2})
            for row in rows
            if rank == 0 or row.step < 4
        ]
        writer.write(mine, wait=True)
        writer.close()
        (tmp_path / f"process-{os.getpid()}.arrow").rename(tmp_path / f"{name}.arrow")
    windows = list(Following(tmp_path).windows(lambda: True))
    assert [each.step for each in windows] == list(range(-1, 7))
    for window in windows:
        first, second = window.processes
        assert {record.rank for record in first} == {0}
        # The other rank died.
        assert {record.rank for record in second} == ({1} if window.step < 4 else set())


def test_what_was_read_leaves_the_disk(clean: Trace, tmp_path: Path) -> None:
    (rows,) = clean.processes
    writer = TraceWriter(tmp_path)
    for number in range(12):
        marks = (f"{number} {place} {'-' * 2000}" for place in range(len(rows)))
        many = [
            row._replace(step=number, digest=mark) for row, mark in zip(rows, marks, strict=True)
        ]
        writer.write(many, wait=True)
    writer.close()
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    with (tmp_path / "probe").open("wb") as probe:
        if not let_go(probe.fileno(), 4096):
            pytest.skip("this file system keeps what was let go")
    following = Following(tmp_path)
    assert [window.step for window in following.windows(lambda: True)] == list(range(12))
    assert path.stat().st_size == size > 2 * LET_GO_BYTES
    assert path.stat().st_blocks * 512 < 1.5 * LET_GO_BYTES
    # Of each process the last row tells how it ended.
    trace = following.trace()
    assert (trace.steps, trace.ranks, trace.notes) == (11, (0,), ())


def test_a_file_that_was_cut_is_named_once(clean: Trace, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    rows = [row._replace(context={**row.context, "world": 2}) for row in clean.processes[0]]
    writer.write(rows, wait=True)
    writer.close()
    (path,) = tmp_path.iterdir()
    # The other rank was killed while it wrote its first rows.
    (tmp_path / "process-0.arrow").write_bytes(path.read_bytes()[:4096])
    answers = iter([False])
    following = Following(tmp_path)
    assert list(following.windows(lambda: next(answers, True)))
    cut, lacking = following.trace().notes
    assert cut == "process-0.arrow was cut; what came before the cut is used"
    assert lacking == "the job had 2 ranks; the trace lacks 1"


def test_a_job_that_never_trains_has_no_steps(tmp_path: Path) -> None:
    assert list(Following(tmp_path).windows(lambda: True)) == []


def test_a_violation_ends_a_command_that_would_train_for_days(learned: InvariantSet) -> None:
    told: list[str] = []
    pages: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if "step 0" in line:
            url = told[0].removeprefix("live page: ")
            with urllib.request.urlopen(url, timeout=60) as answer:
                pages.append(answer.read().decode())

    command = [sys.executable, str(SCRIPT), "1", "replaced", "for days"]
    collected, report = check_command(command, learned, on_violation="stop", port=0, tell=tell)
    assert collected.stopped
    assert report is not None
    (note,) = report.notes
    assert "ended by a violation in step 0" in note
    assert report.causes[0].head.invariant.relation == "OptimizerParameters"
    assert "train.py:" in told[1]
    assert "step 0: an optimizer holds a parameter" in told[1]
    assert "Cause 1" in pages[0]


def test_a_command_that_has_ended_by_itself_is_not_stopped(tmp_path: Path) -> None:
    def look_on(ended: Callable[[], bool]) -> bool:
        while not ended():
            time.sleep(0.01)
        return False

    collected = collect(["bash", "-c", "exit 3"], tmp_path / "trace", look_on=look_on)
    assert (collected.stopped, collected.exit_code) == (False, 3)


def test_a_command_that_had_come_to_its_end_is_not_stopped(clean: Trace, tmp_path: Path) -> None:
    folder, there = tmp_path / "trace", tmp_path / "there"
    # Its trace is whole, and its process is still there.
    command = ["bash", "-c", f"cp {clean.folder}/* {folder} && touch {there} && sleep 600"]

    def look_on(ended: Callable[[], bool]) -> bool:
        while not there.exists():
            time.sleep(0.01)
        return ended()

    collected = collect(command, folder, look_on=look_on)
    assert (collected.stopped, collected.exit_code) == (False, 0)


def test_what_is_done_during_a_run_needs_a_command(
    clean: Trace, learned: InvariantSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(learned, tmp_path / "set")
    for option in (["--port", "0"], ["--on-violation", "stop"]):
        words = ["invariants", "check", str(tmp_path / "set"), *option, str(clean.folder)]
        assert main(words) == 2
        assert "need a command" in capsys.readouterr().err
