"""Set-ups that are killed or meet another one."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from scripts.environment import ensure
from tests.scripts.end_to_end.test_environment import (  # noqa: F401
    builds,
    can_import_small,
    project,
    start,
    wait_until,
)


def test_a_killed_setup_is_made_again_once_its_pip_has_ended(project: Path) -> None:  # noqa: F811
    hold = project / "hold"
    hold.touch()
    killed = start(project, "a")
    wait_until(lambda: builds(project) == 1)
    killed.kill()
    killed.wait()
    half_made = project / ".venv" / "half-made"
    half_made.touch()
    with (project / ".venv.lock").open("r+") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    hold.unlink()
    folder = ensure(["a"], project)
    assert builds(project) == 2
    assert can_import_small(folder)
    assert not half_made.exists()


def test_two_setups_at_once_make_one_environment(project: Path) -> None:  # noqa: F811
    hold = project / "hold"
    hold.touch()
    first = start(project, "a")
    wait_until(lambda: builds(project) == 1)
    second = start(project, "a")
    assert second.stderr is not None
    assert "another set-up" in second.stderr.readline()
    hold.unlink()
    folders = {process.communicate(timeout=120)[0].strip() for process in (first, second)}
    assert folders == {str(project / ".venv")}
    assert builds(project) == 1
