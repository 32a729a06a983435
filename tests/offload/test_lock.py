"""One process at a time; the lock dies with its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
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
            pytest.raises(
                SetupError, match=rf"is held by process {process.pid} on .+ since 20.+; wait"
            ),
            hold(tmp_path / "lock"),
        ):
            pytest.fail("two processes hold the session")
    finally:
        end(process)


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "lock")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with hold(tmp_path / "lock") as died:
        assert died is not None
        assert (died.process, died.host) == (process.pid, socket.gethostname())
    with hold(tmp_path / "lock") as died:
        assert died is None, "the last holder let go"


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with hold(tmp_path / "lock"):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with hold(tmp_path / "lock") as died:
            assert died is None
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_the_end_of_a_forked_child_leaves_it_held(tmp_path: Path) -> None:
    child = 0
    try:
        with hold(tmp_path / "lock"):
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                with pytest.raises(SetupError, match=str(os.getpid())), hold(tmp_path / "lock"):
                    pytest.fail("held twice")
    finally:
        if child == 0:
            os._exit(0)


def test_it_can_be_held_again_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with hold(tmp_path / "lock"):
            pass
    with pytest.raises(RuntimeError, match="inside"), hold(tmp_path / "lock"):
        raise RuntimeError("inside")
    with hold(tmp_path / "lock") as died:
        assert died is None, "an error is an end in order"


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


@pytest.mark.parametrize(
    "content", [b"", b"12\n", b"{}", b"[1]", b"\xff" * 5000, b'{"process": 1e999}']
)
def test_a_lock_file_with_something_else_in_it_is_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    with hold(tmp_path / "lock") as died:
        assert died is None


def test_a_holder_on_another_machine_is_named_with_it(tmp_path: Path) -> None:
    """The kernel of a shared file system says that it is locked, the file by whom."""
    path = tmp_path / "lock"
    process = start_holder(path)
    try:
        path.write_text('{"process": 77, "host": "board-3", "since": "2026-01-01 10:00:00"}')
        with (
            pytest.raises(SetupError, match=r"process 77 on board-3 since .*another machine"),
            hold(path),
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
        pytest.raises(SetupError, match=r"cannot lock files .*keep the session on a local disk"),
        hold(tmp_path / "lock"),
    ):
        pytest.fail("held nothing")


def test_a_folder_that_is_not_there_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="No such file"), hold(tmp_path / "missing" / "lock"):
        pytest.fail("held nothing")
