"""Long work that is killed anywhere goes on where it was, says what it does again, and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.runs.events import Note, PhaseStarted
from tapml.runs.folder import RunFolder
from tapml.runs.journal import Journal
from tapml.runs.kind import RunKind
from tapml.runs.live_file import LiveReader
from tapml.runs.lock import RunLock
from tapml.runs.progress import Live
from tapml_targets.errors import InputError, SetupError
from tapml_targets.failpoints import VARIABLE
from tests.runs.cook import DISHES, KIND, cook


def in_a_process(folder: Path, fault: str = "", salt: str = "1 g") -> int:
    command = [sys.executable, "-m", "tests.runs.cook", str(folder), salt]
    environment = {**os.environ, VARIABLE: fault, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, timeout=60)
    return done.returncode


def begun(folder: Path) -> RunFolder:
    run_folder = RunFolder(folder, KIND)
    run_folder.begin(menu="all")
    return run_folder


def steps(folder: Path) -> list[str]:
    with RunFolder(folder, KIND).open_journal() as journal:
        return [data["dish"] for _, _, data in journal.events("step")]


def cooked(folder: Path) -> list[str]:
    with RunFolder(folder, KIND).open_journal() as journal:
        return [each.subject for each in journal.results("cook")]


def test_killed_at_any_boundary_it_goes_on_and_cooks_nothing_twice(tmp_path: Path) -> None:
    record = tmp_path / "record"
    assert in_a_process(tmp_path / "unbroken", f"record={record}") == 0
    sites = [line.replace(str(tmp_path / "unbroken"), "*") for line in
             record.read_text().splitlines()]  # fmt: skip
    assert {line.split()[1] for line in sites} == {"write", "fsync", "commit"}
    assert not any("live.json" in line for line in sites)
    seen: dict[str, int] = {}
    for number, site in enumerate(sites):
        seen[site] = seen.get(site, 0) + 1
        folder = tmp_path / str(number)
        assert in_a_process(folder, f"kill@{site}#{seen[site]}") == -signal.SIGKILL, site
        assert in_a_process(folder) == 0, site
        assert cooked(folder) == list(DISHES), site
        assert set(steps(folder)) == set(DISHES)


def test_what_has_changed_is_done_again_and_the_reason_is_given(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    assert cook(tmp_path / "run", "1 g") == []
    assert cook(tmp_path / "run", "1 g") == []
    assert cook(tmp_path / "run", "2 g") == [
        "soup again: the salt: 1 g -> 2 g",
        "fish again: the salt: 1 g -> 2 g",
    ]
    assert cook(tmp_path / "run", "1 g") == [], "the first results hold again"
    assert steps(tmp_path / "run") == [*DISHES, "soup", "fish"]


def test_a_run_that_did_not_end_is_reported_to_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert in_a_process(folder, "kill@after commit */journal.sqlite#6") == -signal.SIGKILL
    (said,) = cook(folder, "1 g")
    assert said.startswith("the previous run was interrupted: process ")


def test_a_row_that_was_passed_over_is_named_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with begun(folder).open_journal() as journal:
        journal._connection.execute(
            "INSERT INTO result (key, parts, time, stage, subject, status, data)"
            " VALUES ('', '{}', 1.0, 'cook', 'soup', 'pass', '{\"minutes\": \"ten\"}')"
        )
    (said,) = cook(folder, "1 g")
    assert "Expected `int`, got `str` - at `$.minutes`) and counts as missing" in said
    assert cook(folder, "2 g")[-1].startswith("fish again")


def test_whoever_looks_at_the_folder_sees_how_far_it_is(tmp_path: Path) -> None:
    run_folder = begun(tmp_path / "run")
    reader = LiveReader(run_folder.path, Live)
    assert not reader.read().running
    with run_folder.run() as run:
        run.watcher(PhaseStarted("cook", total=3))
        assert reader.read().running
        with pytest.raises(SetupError, match=f"held by process {os.getpid()} "), run_folder.run():
            pytest.fail("two runs in one folder")
    ended = reader.read()
    assert (ended.running, ended.cut_off, ended.process) == (False, False, os.getpid())
    # The last write comes after the last event.
    assert (ended.phase, ended.total) == ("cook", 3)


def test_a_killed_run_is_cut_off_for_a_reader(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert in_a_process(folder, "kill@after commit */journal.sqlite#6") == -signal.SIGKILL
    live = LiveReader(folder, Live).read()
    assert (live.running, live.cut_off) == (False, True)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"running": true}', '{"format": "tapml-live/1", "running": 1}', "[" * 10**5],
)
def test_a_damaged_live_file_says_that_nothing_runs(tmp_path: Path, text: str) -> None:
    (tmp_path / "live.json").write_text(text)
    with RunLock(tmp_path / "lock").hold():
        assert LiveReader(tmp_path, Live).read() == Live()


def test_a_disk_that_refuses_the_live_file_ends_no_run(tmp_path: Path) -> None:
    run_folder = begun(tmp_path / "run")
    (run_folder.path / "live.json").mkdir()
    with run_folder.run() as run:
        run.watcher(Note("goes on"))
    assert cook(run_folder.path, "1 g") == []


def test_phases_are_journaled_with_their_labels(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    cook(tmp_path / "run", "1 g")
    with RunFolder(tmp_path / "run", KIND).open_journal() as journal:
        ((_, _, phase),) = journal.events("phase")
        ((_, _, run),) = journal.events("run")
    assert (phase["name"], phase["stove"]) == ("cook", "gas")
    assert run == {"salt": "1 g", "process": os.getpid()}


def test_work_of_another_kind_and_other_files_are_refused(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    other = RunFolder(tmp_path / "run", RunKind("tapml-baking/1"))
    with pytest.raises(InputError, match="has format 'tapml-cooking/1', expected 'tapml-baking/1'"):
        other.begin()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="has other files"):
        RunFolder(tmp_path / "mine", KIND).begin()


def test_a_removed_folder_is_gone_and_can_be_begun_again(tmp_path: Path) -> None:
    run_folder = begun(tmp_path / "run")
    with run_folder.lock.hold(), pytest.raises(SetupError, match="is held by"):
        run_folder.remove()
    run_folder.remove()
    assert list(tmp_path.iterdir()) == []
    begun(tmp_path / "run")
    with Journal(tmp_path / "run" / "journal.sqlite", KIND) as journal:
        assert journal.read_setting("menu") == "all"


def test_runs_know_neither_operators_nor_models() -> None:
    """The package is at the bottom: only what writes durably and what names errors is below it."""
    code = (
        "import pkgutil, sys, importlib, json, tapml.runs\n"
        "before = set(sys.modules)\n"
        "for each in pkgutil.iter_modules(tapml.runs.__path__, 'tapml.runs.'):\n"
        "    importlib.import_module(each.name)\n"
        "print(json.dumps(sorted(n for n in sys.modules if n.startswith('tapml'))))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    below = {".".join(name.split(".")[:2]) for name in json.loads(loaded)}
    assert {name for name in below if name.startswith("tapml.")} == {"tapml.durable", "tapml.runs"}
    assert not any(name.startswith("tapml_rpc") for name in below)
