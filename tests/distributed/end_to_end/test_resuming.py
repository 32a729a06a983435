"""A check that keeps its results in a folder: killed anywhere, it goes on where it was."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tapml.distributed.checking import SettingChecked
from tapml.distributed.keeping import KIND
from tapml.runs.folder import RunFolder
from tapml.runs.journal import JOURNAL, Journal
from tests.distributed.conftest import CheckJob

_COMMAND = "from tapml.cli.start import main; raise SystemExit(main())"


def _subjects(folder: Path) -> list[str]:
    with Journal(folder / JOURNAL, KIND, readonly=True) as journal:
        return [each.subject for each in journal.results()]


def test_a_second_check_runs_only_what_is_missing(check_job: CheckJob, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    first = check_job(worlds=[2], engines=["ddp"], folder=folder)
    second = check_job(worlds=[1, 2], engines=["ddp"], folder=folder)
    third = check_job(worlds=[1, 2], engines=["ddp"], folder=folder)

    assert _subjects(folder) == ["one device", "ddp x 2", "one device", "ddp x 1"]
    assert second.results[1] == first.results[0]
    assert third.results == second.results
    assert third.facts == second.facts


def test_a_job_that_changed_is_checked_again(check_job: CheckJob, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for code in ("", "# another text\n"):
        check_job(code, worlds=[1], engines=["ddp"], folder=folder)

    assert _subjects(folder) == ["one device", "ddp x 1"] * 2


def test_a_file_that_a_step_imports_is_part_of_the_job(check_job: CheckJob, tmp_path: Path) -> None:
    folder, beside = tmp_path / "kept", tmp_path / "beside.py"
    code = """
def step(model, batch, optimizer):
    from beside import loss
    optimizer.zero_grad()
    loss(model(batch)).backward()
    optimizer.step()
"""
    for text in ("return x.square().mean()", "return x.sum()"):
        beside.write_text(f"def loss(x):\n    {text}\n")
        check_job(code, worlds=[1], engines=["ddp"], folder=folder)

    assert _subjects(folder) == ["one device", "ddp x 1"] * 2


def test_killed_between_two_settings_it_goes_on(check_job: CheckJob, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    whole = check_job(worlds=[1, 2, 4], engines=["ddp"])
    job = tmp_path / "job.py"
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", _COMMAND, "distributed", "check", str(job)),
            *("--world", "1,2,4", "--engine", "ddp", "--folder", str(folder)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 400
    while time.monotonic() < until and process.poll() is None:
        if RunFolder(folder, KIND).exists and "ddp x 1" in _subjects_if_written(folder):
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    done = len([each for each in _subjects(folder) if each != "one device"])
    ran: list[str] = []

    def watch(event: object) -> None:
        if isinstance(event, SettingChecked):
            ran.append(event.result.setting.name)

    resumed = check_job(worlds=[1, 2, 4], engines=["ddp"], folder=folder, watcher=watch)

    # On a busy machine it may have ended before the kill.
    assert 1 <= done <= 3
    assert [each.outcome for each in resumed.results] == [each.outcome for each in whole.results]
    kept = [each for each in _subjects(folder) if each != "one device"]
    assert sorted(kept) == ["ddp x 1", "ddp x 2", "ddp x 4"]
    assert ran == ["ddp x 1", "ddp x 2", "ddp x 4"]


def _subjects_if_written(folder: Path) -> list[str]:
    try:
        return _subjects(folder)
    except Exception:
        return []  # The journal is being made.
