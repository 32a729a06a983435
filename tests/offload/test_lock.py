"""One process at a time; the lock dies with its holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.offload.lock import hold
from tapml_targets.errors import SetupError

_HOLDER = """
import sys
from pathlib import Path
from tapml.offload.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_another_process_is_named(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "lock")
    try:
        with (
            pytest.raises(SetupError, match=rf"is held by process {process.pid};"),
            hold(tmp_path / "lock"),
        ):
            pytest.fail("two processes hold the session")
    finally:
        end(process)


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "lock")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with hold(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_it_can_be_held_again_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with hold(tmp_path / "lock"):
            pass
    with pytest.raises(RuntimeError, match="inside"), hold(tmp_path / "lock"):
        raise RuntimeError("inside")
    with hold(tmp_path / "lock"):
        pass


def test_the_same_process_does_not_hold_it_twice(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path), pytest.raises(SetupError, match=rf"process {os.getpid()}"), hold(path):
        pytest.fail("held twice")


def test_a_refused_try_leaves_the_holders_number(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "lock")
    try:
        for _ in range(2):
            with pytest.raises(SetupError, match=str(process.pid)), hold(tmp_path / "lock"):
                pytest.fail("two processes hold the session")
    finally:
        end(process)


def test_a_folder_that_is_not_there_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="No such file"), hold(tmp_path / "missing" / "lock"):
        pytest.fail("held nothing")
