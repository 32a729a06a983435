from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.environment.installer import SetupError
from scripts.environment.record import python_of, read_record
from scripts.environment.setup import LOG_NAME, ensure
from tests.scripts.conftest import SetUp

ENSURE = """
import sys
from scripts.environment import SetupError, ensure
try:
    print(ensure(sys.argv[1:]).folder)
except SetupError as error:
    sys.exit(str(error))
"""


def start(project: Path, *extras: str) -> subprocess.Popen[str]:
    """Start a set-up of `project` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", ENSURE, *extras],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return once `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def builds(project: Path) -> int:
    """How often pip has asked for the project to be built."""
    path = project / "builds.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def has_ended(process: int) -> bool:
    """Whether a process is gone, or is only still listed because nobody has waited for it."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def can_import_small(folder: Path) -> bool:
    """Whether the small project is installed in an environment."""
    listing = subprocess.run(
        [python_of(folder), "-c", "import importlib.metadata as m; m.version('small')"],
        check=False,
        capture_output=True,
    )
    return listing.returncode == 0


@pytest.mark.slow
def test_a_finished_environment_is_found_without_pip(set_up: SetUp) -> None:
    project, first = set_up
    log = (first.folder / LOG_NAME).read_text()
    second = ensure(["a"], project)
    assert second.python == first.python
    assert can_import_small(first.folder)
    assert first.seconds.downloading + first.seconds.unpacking > 0
    assert second.seconds.downloading + second.seconds.unpacking == 0
    assert (first.folder / LOG_NAME).read_text() == log


@pytest.mark.slow
def test_changed_requirements_and_new_extras_complete_the_environment_in_place(
    set_up: SetUp,
) -> None:
    project, folder = set_up.project, set_up.first.folder
    before = builds(project)
    kept = folder / "kept"
    kept.touch()
    with (project / "constraints.txt").open("a") as constraints:
        constraints.write("# changed\n")
    ensure(["a"], project)
    assert builds(project) == before + 1
    ensure(["b"], project)
    record = read_record(folder)
    assert record is not None
    assert record.extras == ("a", "b")
    assert builds(project) == before + 2
    assert kept.exists()


@pytest.mark.slow
def test_a_killed_setup_is_made_anew_once_its_pip_has_ended(project: Path) -> None:
    hold = project / "hold"
    hold.touch()
    killed = start(project, "a")
    wait_until(lambda: builds(project) == 1)
    killed.kill()
    killed.communicate()
    half_made = project / ".venv" / "half-made"
    half_made.touch()
    record = read_record(project / ".venv")
    assert record is not None
    assert not record.finished
    with (project / ".venv.lock").open("r+") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    hold.unlink()
    folder = ensure(["a"], project).folder
    assert builds(project) == 2
    assert can_import_small(folder)
    assert not half_made.exists()


@pytest.mark.slow
def test_an_interrupt_ends_pip_and_leaves_an_environment_that_does_not_count(
    project: Path,
) -> None:
    (project / "hold").touch()
    interrupted = start(project, "a")
    wait_until(lambda: builds(project) == 1)
    os.kill(interrupted.pid, signal.SIGINT)
    interrupted.communicate(timeout=120)
    build = int((project / "builds.txt").read_text())
    wait_until(lambda: has_ended(build))
    assert interrupted.returncode != 0
    record = read_record(project / ".venv")
    assert record is not None
    assert not record.finished


@pytest.mark.slow
def test_two_setups_at_once_make_one_environment(project: Path) -> None:
    hold = project / "hold"
    hold.touch()
    first = start(project, "a")
    wait_until(lambda: builds(project) == 1)
    second = start(project, "a")
    assert second.stderr is not None
    assert f"another set-up is running (process {first.pid})" in second.stderr.readline()
    hold.unlink()
    folders = {process.communicate(timeout=120)[0].strip() for process in (first, second)}
    assert folders == {str(project / ".venv")}
    assert builds(project) == 1


@pytest.mark.slow
def test_a_failing_pip_is_quoted_with_its_remedy_and_its_log(project: Path) -> None:
    (project / "broken").touch()
    with pytest.raises(SetupError) as caught:
        ensure(["a"], project)
    message = str(caught.value)
    assert "OSError: [Errno 28] No space left on device" in message
    assert "free about 3 GB" in message
    assert str(project / ".venv" / LOG_NAME) in message
    (project / "broken").unlink()
    assert can_import_small(ensure(["a"], project).folder)


def test_a_folder_with_something_else_in_it_is_left_alone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    monkeypatch.setenv("TAPML_VENV", str(precious))
    with pytest.raises(SetupError, match="holds something else"):
        ensure(["a"], project)
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]


def test_too_small_a_disk_is_named_before_anything_is_made(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.environment.setup.NEEDED_MB", {"a": 10**9})
    with pytest.raises(SetupError, match="MB free and the set-up needs about 1000000000 MB"):
        ensure(["a"], project)
    assert not (project / ".venv").exists()


def test_a_place_that_cannot_be_written_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_VENV", str(project / "pyproject.toml" / "venv"))
    with pytest.raises(SetupError, match=r"cannot be written.*Set TAPML_VENV"):
        ensure(["a"], project)
