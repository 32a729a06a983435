"""One process at a time; the lock dies with its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tapml.durable.files import remove_folder
from tapml.runs.lock import RunLock
from tapml_targets.errors import SetupError

_HOLDER = """
import sys
from pathlib import Path
from tapml.runs.lock import RunLock
with RunLock(Path(sys.argv[1])).hold():
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
            pytest.raises(
                SetupError, match=rf"is held by process {process.pid} on .+ since 20.+; wait"
            ),
            RunLock(tmp_path / "lock").hold(),
        ):
            pytest.fail("two processes hold the session")
    finally:
        end(process)


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "lock")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with RunLock(tmp_path / "lock").hold() as died:
        assert died is not None
        assert (died.process, died.host) == (process.pid, socket.gethostname())
    with RunLock(tmp_path / "lock").hold() as died:
        assert died is None, "the last holder let go"


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with RunLock(tmp_path / "lock").hold():
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with RunLock(tmp_path / "lock").hold() as died:
            assert died is None
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_the_end_of_a_forked_child_leaves_it_held(tmp_path: Path) -> None:
    child = 0
    try:
        with RunLock(tmp_path / "lock").hold():
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                with (
                    pytest.raises(SetupError, match=str(os.getpid())),
                    RunLock(tmp_path / "lock").hold(),
                ):
                    pytest.fail("held twice")
    finally:
        if child == 0:
            os._exit(0)


def test_it_can_be_held_again_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with RunLock(tmp_path / "lock").hold():
            pass
    with pytest.raises(RuntimeError, match="inside"), RunLock(tmp_path / "lock").hold():
        raise RuntimeError("inside")
    with RunLock(tmp_path / "lock").hold() as died:
        assert died is None, "an error is an end in order"


def test_the_same_process_does_not_hold_it_twice(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        RunLock(path).hold(),
        pytest.raises(SetupError, match=rf"process {os.getpid()}"),
        RunLock(path).hold(),
    ):
        pytest.fail("held twice")


def test_a_refused_try_leaves_the_holders_number(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "lock")
    try:
        for _ in range(2):
            with (
                pytest.raises(SetupError, match=str(process.pid)),
                RunLock(tmp_path / "lock").hold(),
            ):
                pytest.fail("two processes hold the session")
    finally:
        end(process)


@pytest.mark.parametrize(
    "content", [b"", b"12\n", b"{}", b"[1]", b"\xff" * 5000, b'{"process": 1e999}']
)
def test_a_lock_file_with_something_else_in_it_is_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    with RunLock(tmp_path / "lock").hold() as died:
        assert died is None


def test_a_removed_lock_file_has_no_second_holder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The holder removes the folder; others wait for its lock, or begin again there."""
    path = tmp_path / "run" / "lock"
    path.parent.mkdir()
    with ExitStack() as first, ExitStack() as third:
        first.enter_context(RunLock(path).hold())

        def meanwhile(seconds: float) -> None:
            if threading.current_thread() is not threading.main_thread():
                # The clock is everybody's, and earlier tests may have left threads that wait.
                really_sleep(seconds)
            elif path.parent.exists() and not third_began:
                remove_folder(path.parent)
                first.close()
                path.parent.mkdir()
                third.enter_context(RunLock(path).hold())
                third_began.append(True)

        third_began: list[bool] = []
        really_sleep = time.sleep
        monkeypatch.setattr("tapml.runs.lock.time.sleep", meanwhile)
        with pytest.raises(SetupError, match="is held by"), RunLock(path).hold():
            pytest.fail("two hold the folder")
        assert third_began
        assert RunLock(path).is_held


def test_a_lock_file_that_is_removed_before_it_is_locked_is_not_the_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    real = fcntl.flock
    opened: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if not opened:
            opened.append(descriptor)
            path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with RunLock(path).hold():
        assert opened
        with pytest.raises(SetupError, match="is held by"), RunLock(path).hold():
            pytest.fail("two hold the folder")


def test_a_lock_file_that_was_removed_is_neither_held_nor_kept_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    path.touch()
    real = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        path.unlink(missing_ok=True)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with RunLock(path).keep_free() as free:
        assert not free
    assert not RunLock(path).is_held


def test_a_holder_on_another_machine_is_named_with_it(tmp_path: Path) -> None:
    """The kernel of a shared file system says that it is locked, the file by whom."""
    path = tmp_path / "lock"
    process = start_holder(path)
    try:
        path.write_text('{"process": 77, "host": "board-3", "since": "2026-01-01 10:00:00"}')
        with (
            pytest.raises(SetupError, match=r"process 77 on board-3 since .*another machine"),
            RunLock(path).hold(),
        ):
            pytest.fail("two processes hold the session")
    finally:
        end(process)


def test_a_file_system_without_locks_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(SetupError, match=r"cannot lock files .*choose a folder on a local disk"),
        RunLock(tmp_path / "lock").hold(),
    ):
        pytest.fail("held nothing")


def test_a_folder_that_is_not_there_is_a_setup_error(tmp_path: Path) -> None:
    with (
        pytest.raises(SetupError, match="No such file"),
        RunLock(tmp_path / "missing" / "lock").hold(),
    ):
        pytest.fail("held nothing")
