"""Ctrl-C, kill -9, a server that dies: what was journaled is kept, nothing else is left."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.offload.commands import LIMIT_SECONDS, Ended, Started, run_here, started
from tests.offload.processes import MARK, half_written, left_after, marked, new_mark
from tests.offload.sessions import FinishedSession, assert_same_verdicts


def read_until(process: Started, words: str) -> None:
    """Wait until the command prints a line with these words; they must come."""
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"the command ended without a line about {words!r}")


def end(process: Started) -> Ended:
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    return Ended(process.returncode, output, errors)


def assert_ends_cleanly(
    finished: FinishedSession,
    session: Path,
    after: str,
    send: Callable[[int], None],
    expected: tuple[int, str],
) -> None:
    """A session that is told to end after a line says one of its own and leaves nothing."""
    mark = new_mark()
    arguments = finished.arguments(session)
    with started(*arguments, cache=finished.cache, **{MARK: mark}) as process:
        read_until(process, after)
        send(process.pid)
        ended = end(process)
    exit_code, word = expected
    assert ended.exit_code == exit_code
    assert ended.error_lines == [
        f"tapml: {word}; no partial files are left: continue with "
        f"`tapml offload --session {session}`"
    ]
    assert "Traceback" not in ended.errors
    assert left_after(mark) == {}
    assert half_written(session) == []


@pytest.mark.parametrize("after", ["open device", "import model", "[7/", "move operators"])
def test_ctrl_c_ends_with_one_line_and_leaves_nothing_running(
    finished: FinishedSession, tmp_path: Path, after: str
) -> None:
    """The signal goes to the whole group, as a terminal sends it."""
    assert_ends_cleanly(
        finished,
        tmp_path / "session",
        after,
        lambda pid: os.killpg(pid, signal.SIGINT),
        (130, "interrupted"),
    )


@pytest.mark.parametrize("after", ["import model", "move operators"])
def test_sigterm_to_the_command_alone_ends_it_as_ctrl_c_does(
    finished: FinishedSession, tmp_path: Path, after: str
) -> None:
    """A batch system or a service manager tells one process, and its children not."""
    assert_ends_cleanly(
        finished,
        tmp_path / "session",
        after,
        lambda pid: os.kill(pid, signal.SIGTERM),
        (143, "terminated"),
    )


def test_ctrl_c_in_a_cold_start_ends_the_compilers(
    finished: FinishedSession, tmp_path: Path
) -> None:
    """Nothing is cached: the signal comes while child processes compile."""
    session, mark = tmp_path / "session", new_mark()
    cache = finished.copy_cache(tmp_path / "cache")
    for folder in cache.iterdir():
        if folder.name != "plans":
            for path in folder.rglob("*"):
                if path.is_file():
                    path.unlink()
    arguments = finished.arguments(session)
    with started(*arguments, cache=cache, **{MARK: mark}) as process:
        read_until(process, "import model")
        os.killpg(process.pid, signal.SIGINT)
        ended = end(process)
    assert ended.exit_code == 130
    assert left_after(mark) == {}
    assert half_written(session) == half_written(cache) == []


def test_a_session_killed_again_and_again_ends_in_the_same_verdicts(
    finished: FinishedSession, tmp_path: Path
) -> None:
    """kill -9 after a seeded number of lines; each new process goes on where the last one died."""
    session, generator = tmp_path / "session", random.Random(7)
    arguments = finished.arguments(session)
    for lines in sorted(generator.sample(range(2, 50), 2)):
        mark = new_mark()
        with started(*arguments, cache=finished.cache, **{MARK: mark}) as process:
            for _ in range(lines):
                process.stderr.readline()
            process.kill()
            process.wait()
        assert left_after(mark) == {}, "children notice that their parent is gone"
    ended = run_here(*arguments, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    assert "verdicts reused" in ended.errors, "the killed runs' verdicts are used"
    assert_same_verdicts(session, finished)
    assert half_written(session) == []


def test_a_server_that_dies_ends_the_run_with_one_line_and_the_session_goes_on(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session, mark = tmp_path / "session", new_mark()
    arguments = finished.arguments(session)
    with started(*arguments, cache=finished.cache, **{MARK: mark}) as process:
        read_until(process, "[3/")
        servers = marked(mark, "tapml_rpc.supervisor.worker")
        assert servers
        for server in servers:
            os.kill(server, signal.SIGKILL)
        ended = end(process)
    assert ended.exit_code == 4
    (line,) = ended.error_lines
    assert "SIGKILL" in line
    assert f"continue with `tapml offload --session {session}`" in line
    assert len(ended.errors.partition(line)[2].splitlines()) <= 2, "nothing but a hint follows"
    assert left_after(mark) == {}
    assert half_written(session) == []
    resumed = run_here("offload", "--session", session, cache=finished.cache)
    assert resumed.exit_code == 0, resumed.errors
    assert "verdicts reused" in resumed.errors
    assert_same_verdicts(session, finished)
