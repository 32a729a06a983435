"""Environments with other versions of a library, made by pip from wheels in a folder."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.isolate import kept_environments
from tapml.isolate.kept_environments import _errors, _Following, kept_environment
from tapml_targets.errors import SetupError
from tests.isolate.wheels import write_wheel


@pytest.fixture(autouse=True)
def _wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions of a library, and a cache of one's own."""
    for version in ("1.0", "1.1"):
        write_wheel(tmp_path / "wheels", "tinylib", version, {"tinylib.py": f"NOW = {version!r}\n"})
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))


def version_in(python: Path) -> str:
    command = [str(python), "-c", "import tinylib; print(tinylib.NOW)"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return found.stdout.strip()


def test_two_versions_are_two_environments_that_are_made_once(tmp_path: Path) -> None:
    said: list[str] = []
    found = []
    for version in ("1.0", "1.1"):
        with kept_environment([f"tinylib=={version}"], said=said.append) as python:
            found.append((python, version_in(python)))
    assert [version for _, version in found] == ["1.0", "1.1"]
    assert any("tinylib" in line for line in said)
    (tmp_path / "wheels" / "tinylib-1.0-py3-none-any.whl").unlink()
    said.clear()
    with kept_environment(["tinylib==1.0"], said=said.append) as python:
        assert (python, version_in(python)) == found[0]
    assert said == []


def test_what_was_left_half_made_is_made_again_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept_environment(["tinylib==1.0"]) as python:
        folder = python.parent.parent
    (folder / "tapml-environment.json").unlink()
    (folder / "bin" / "python").unlink()
    with kept_environment(["tinylib==1.0"]) as python:
        assert version_in(python) == "1.0"
    monkeypatch.setattr(kept_environments, "LARGEST_BYTES", 0)
    # One that is in use stays.
    with kept_environment(["tinylib==1.0"]) as python, kept_environment(["tinylib==1.1"]):
        assert version_in(python) == "1.0"
    with kept_environment(["tinylib"]):
        assert not folder.exists()


def test_a_version_that_pip_cannot_get_names_those_there_are(tmp_path: Path) -> None:
    with (
        pytest.raises(
            SetupError, match=r"from versions: 1\.0, 1\.1.*Choose a version that pip has"
        ),
        kept_environment(["tinylib==7.*"]),
    ):
        pass
    assert list((tmp_path / "cache" / "environments").glob("*/")) == []


def test_an_index_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "NO_INDEX": "0", "FIND_LINKS": "", "EXTRA_INDEX_URL": "", "CONFIG_FILE": os.devnull,
        "INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "1",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with (
        pytest.raises(SetupError, match="index cannot be reached"),
        kept_environment(["tinylib==1.0"]),
    ):
        pass


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Traceback (most recent call last):", 'File "x"', "OSError: no"], "OSError: no"),
        (["ERROR: Exception:", "Traceback (most recent call last):", "OSError: no"], "OSError: no"),
        (["Collecting it", "error: metadata-generation-failed", "hint: see above"],
         "metadata-generation-failed"),
        (["ERROR: No versions of it.", "ERROR: No distribution"], "No versions of it"),
        ([], "it said nothing"),
    ],
)  # fmt: skip
def test_the_line_that_says_what_failed_is_shown(lines: list[str], said: str) -> None:
    assert _errors(lines) == said


def test_what_was_built_for_numpy_1_gets_numpy_1(tmp_path: Path) -> None:
    said = "A module that was compiled using NumPy 1.x cannot be run in\\nNumPy 2.1"
    old = f"import numpy\nif numpy.VERSION > '2': print('{said}')\n"
    write_wheel(tmp_path / "wheels", "oldlib", "1.0", {"oldlib.py": old})
    for version in ("1.9", "2.1"):
        write_wheel(tmp_path / "wheels", "numpy", version, {"numpy.py": f"VERSION = '{version}'\n"})
    with kept_environment(["oldlib", "numpy"], imports=["oldlib"]) as python:
        command = [str(python), "-c", "import numpy; print(numpy.VERSION)"]
        assert subprocess.run(command, check=True, capture_output=True).stdout == b"1.9\n"


def test_pip_keeps_others_waiting_though_its_process_was_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    own = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(own, fcntl.LOCK_EX)

    def killed(_: str) -> None:
        os.close(own)
        with lock.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise KeyboardInterrupt

    slow = "import time; print('Collecting it', flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        _Following(killed, 60, own).run([sys.executable, "-c", slow])


def test_pip_is_stopped_at_the_deadline() -> None:
    with (
        pytest.raises(SetupError, match=r"did not install tinylib within 0\.01 s"),
        kept_environment(["tinylib"], deadline_seconds=0.01),
    ):
        pass
