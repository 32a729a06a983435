from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.cli.main import main
from tapml.invariants.launch import Collected, collect
from tapml.invariants.record import STEP
from tapml.invariants.trace import Trace, hold_new, read_trace
from tapml_targets.errors import InputError
from tests.invariants.conftest import SCRIPT


def test_a_trace_changes_no_number(clean: Trace, losses: dict[Path, str]) -> None:
    plain = subprocess.run(
        [sys.executable, str(SCRIPT), "0"], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert plain.count("0x") == 6
    assert losses[clean.folder] == plain


def test_a_killed_run_leaves_a_trace_that_opens(
    collect_script: Callable[..., Collected],
) -> None:
    collected = collect_script("0", "killed")
    assert collected.exit_code == -9
    assert collected.trace is not None
    assert collected.trace.steps >= 1
    assert any("died" in note for note in collected.trace.notes)


def test_a_script_that_fails_or_never_trains_is_an_error(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for code, said in (("raise SystemExit(3)", "exit code 3"), ("", "made no training step")):
        command = [sys.executable, "-c", code]
        assert main(["invariants", "collect", str(tmp_path), "--", *command]) == 2
        assert said in capfd.readouterr().err


_FORKS: Final = """
import os, torch
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
os._exit(0)
"""


def test_a_forked_rank_that_leaves_without_cleaning_up_has_a_whole_trace(tmp_path: Path) -> None:
    collected = collect([sys.executable, "-c", _FORKS], tmp_path)
    assert collected.exit_code == 0
    assert collected.trace is not None
    # What trains in its first step is known at its end.
    assert collected.trace.steps == 3
    assert collected.trace.notes == ()


def test_a_script_without_an_optimizer_is_told_what_a_step_is(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = "import torch; torch.nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()"
    assert main(["invariants", "collect", str(tmp_path), "--", sys.executable, "-c", code]) == 2
    assert "completed no training step: expected optimizer.step()" in capfd.readouterr().err


def test_ctrl_c_ends_the_command_and_all_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    shell = f"sleep 600 & touch {started}; wait"
    words = [sys.executable, "-m", "tapml.cli.main", "invariants", "collect", str(tmp_path / "t")]
    with subprocess.Popen([*words, "--", "bash", "-c", shell], stderr=subprocess.PIPE) as run:
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        # The pipe ends when no process of the command has it open.
        _, told = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"interrupted" in told


def test_a_missing_program_and_a_used_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no program"):
        collect(["no-such-program"], tmp_path / "trace")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="has other files"):
        collect([sys.executable], tmp_path)


def test_every_step_of_the_script_is_in_the_trace(clean: Trace) -> None:
    (rows,) = clean.processes
    steps = [row for row in rows if row.kind == "call" and row.name == STEP]
    assert [row.step for row in steps] == list(range(6))
    assert all(row.source.endswith("train.py:46") for row in steps)


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 1))
def test_a_cut_file_gives_what_came_before_the_cut(
    clean: Trace, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    (path,) = clean.folder.iterdir()
    content = path.read_bytes()
    folder = tmp_path_factory.mktemp("cut")
    (folder / path.name).write_bytes(content[: int(share * len(content))])
    try:
        (rows,) = read_trace(folder).processes
    except InputError as error:
        assert share < 1
        assert "cut" in str(error) or "no trace" in str(error)
    else:
        assert rows == clean.processes[0][: len(rows)]


def test_a_trace_of_another_version_is_refused(clean: Trace, tmp_path: Path) -> None:
    (path,) = clean.folder.iterdir()
    other = path.read_bytes().replace(b"tapml-invariants-trace/1", b"tapml-invariants-trace/9")
    (tmp_path / path.name).write_bytes(other)
    with pytest.raises(InputError, match="tapml-invariants-trace/9"):
        read_trace(tmp_path)


def test_a_folder_with_two_runs_is_refused(clean: Trace, tmp_path: Path) -> None:
    for path in clean.folder.glob("*.arrow"):
        shutil.copy(path, tmp_path / path.name)
        shutil.copy(path, tmp_path / f"process-0{path.name.removeprefix('process-')}")
    with pytest.raises(InputError, match=r"several runs: rank 0 has 2 files.*of its own"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match=r"an earlier run in process-.*of its own"):
        hold_new(tmp_path, 0)
    hold_new(tmp_path, 1)


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no trace"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="is no trace"):
        read_trace(tmp_path / "nothing")
