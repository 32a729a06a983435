"""The set-up with the real venv and pip, of a project so small that nothing is downloaded."""

from __future__ import annotations

import fcntl
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.environment import (
    LOG,
    MARKER,
    ROOT,
    SetupError,
    answers,
    clean_environment,
    ensure,
    python_of,
    requirements_key,
)
from tests.isolate.wheels import write_wheel

ENSURE = "import sys; from scripts.environment import ensure; print(ensure(sys.argv[1:]))"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root of the small project, with a copy of the set-up."""
    monkeypatch.delenv("TAPML_VENV", raising=False)
    root = tmp_path / "project"
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parents[1] / "small_project", root, ignore=without_caches)
    (root / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "environment.py", root / "scripts")
    return root


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip alone, as `venv` makes it."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=True)
    return folder


@pytest.fixture
def copied_environments(empty_environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are copies of one: `venv` takes seconds for each."""

    def create(folder: Path, *, with_pip: bool) -> None:
        shutil.copytree(empty_environment, folder, symlinks=True, dirs_exist_ok=True)

    monkeypatch.setattr(venv, "create", create)


def start(project: Path, *extras: str) -> subprocess.Popen[str]:
    """Start a set-up of `project` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", ENSURE, *extras],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def builds(project: Path) -> int:
    """How often pip has built the project."""
    path = project / "builds.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def extras(project: Path) -> list[str]:
    """The extras of the finished environment."""
    return (project / ".venv" / MARKER).read_text().split()[2:]


def can_import_small(folder: Path) -> bool:
    """Whether the small project is installed in an environment."""
    command = [str(python_of(folder)), "-c", "import importlib.metadata as m; m.version('small')"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.usefixtures("copied_environments")
def test_an_environment_is_made_once_completed_in_place_and_made_again_for_another_python(
    project: Path,
) -> None:
    folder = ensure(["a"], project)
    assert folder == project / ".venv"
    assert can_import_small(folder)
    assert (folder / LOG).read_bytes() == b""
    ensure(["a"], project)
    assert builds(project) == 1
    kept = folder / "kept"
    kept.touch()

    with (project / "constraints.txt").open("a") as constraints:
        constraints.write("# changed\n")
    ensure(["a"], project)
    assert builds(project) == 2
    ensure(["b"], project)
    assert (builds(project), extras(project)) == (3, ["a", "b"])
    assert kept.exists()

    marker = (folder / MARKER).read_text().split()
    (folder / MARKER).write_text(" ".join(["cpython-10", *marker[1:]]))
    ensure(["a"], project)
    assert (builds(project), extras(project)) == (4, ["a"])
    assert not kept.exists()
    python_of(folder).unlink()
    ensure(["a"], project)
    assert can_import_small(folder)


@pytest.mark.usefixtures("copied_environments")
def test_what_an_extra_names_without_dependencies_comes_without_them(project: Path) -> None:
    needy = "Requires-Dist: nowhere-to-be-found\n"
    write_wheel(project / "wheels", "needy", "1.0", {"needy.py": ""}, needy)
    wheel = next((project / "wheels").iterdir())
    with (project / "pyproject.toml").open("a") as tables:
        tables.write(f"[tool.tapml.without-dependencies]\nb = ['needy @ {wheel.as_uri()}']\n")

    folder = ensure(["a"], project)
    command = [str(python_of(folder)), "-c", "import needy"]
    assert subprocess.run(command, check=False, capture_output=True).returncode != 0
    ensure(["b"], project)
    assert subprocess.run(command, check=False).returncode == 0


def test_ctrl_c_ends_pip_and_leaves_an_environment_that_does_not_count(project: Path) -> None:
    (project / "hold").touch()
    interrupted = start(project, "a")
    wait_until(lambda: builds(project) == 1)
    os.killpg(interrupted.pid, signal.SIGINT)
    interrupted.communicate(timeout=120)
    assert interrupted.returncode != 0
    assert not (project / ".venv" / MARKER).exists()
    with (project / ".venv.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.usefixtures("copied_environments")
def test_a_failure_of_pip_is_shown_with_a_remedy_and_its_log(
    project: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (project / "broken").touch()
    with pytest.raises(SetupError, match="Full disk: free 3 GB") as caught:
        ensure(["a"], project)
    log = project / ".venv" / LOG
    assert str(log) in str(caught.value)
    assert "OSError: [Errno 28] No space left on device" in log.read_text()
    captured = capfd.readouterr()
    assert "error: subprocess-exited-with-error" in captured.err
    assert captured.out == ""
    (project / "broken").unlink()
    assert can_import_small(ensure(["a"], project))


def test_a_folder_with_something_else_in_it_is_left_alone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    monkeypatch.setenv("TAPML_VENV", str(precious))
    with pytest.raises(SetupError, match="holds something"):
        ensure(["a"], project)
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]


def test_a_place_that_cannot_be_written_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_VENV", str(project / "pyproject.toml" / "venv"))
    with pytest.raises(SetupError, match=r"cannot be written: .*Set TAPML_VENV"):
        ensure(["a"], project)


def test_the_key_follows_the_requirements_and_no_setting_of_a_tool(tmp_path: Path) -> None:
    def key(pyproject: str, constraints: str) -> str:
        (tmp_path / "pyproject.toml").write_text(pyproject)
        (tmp_path / "constraints.txt").write_text(constraints)
        return requirements_key(tmp_path)

    first = key("[project]\ndependencies = ['a']", "a==1")
    assert key("[project]\ndependencies = ['a', 'b']", "a==1") != first
    assert key("[project]\ndependencies = ['a']", "a==2") != first
    assert key("[project]\ndependencies = ['a']\n[tool.ruff]\nline-length = 1", "a==1") == first


def test_pip_gets_no_variable_that_leads_outside_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"PYTHONPATH": "x", "PIP_USER": "1", "PIP_INDEX_URL": "mirror"}.items():
        monkeypatch.setenv(name, value)
    passed = clean_environment()
    assert passed["PIP_INDEX_URL"] == "mirror"
    assert not {"PYTHONPATH", "PIP_USER"} & set(passed)


class _Index(http.server.BaseHTTPRequestHandler):
    """An index that has PyTorch and nothing else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/torch/" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a package index."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_only_an_index_that_serves_pytorch_is_used(index: str) -> None:
    assert answers(index)
    assert not answers(f"{index}/elsewhere")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not answers(address, 0.3)
    assert not answers(address)
