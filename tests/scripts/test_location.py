from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.environment.location import environment_folder, is_ours, is_writable
from scripts.environment.record import RECORD_NAME


def test_the_environment_lies_in_the_project(tmp_path: Path) -> None:
    assert environment_folder(tmp_path, {}) == tmp_path / ".venv"


def test_the_variable_decides_where_it_is_set(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    assert environment_folder(tmp_path, {"TAPML_VENV": str(folder)}) == folder


def test_an_environment_of_somebody_else_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    assert environment_folder(tmp_path, {}) == tmp_path / ".venv-tapml"


def test_a_setup_about_to_write_its_record_is_no_somebody_else(tmp_path: Path) -> None:
    (tmp_path / f"{RECORD_NAME}.4711").touch()
    assert is_ours(tmp_path)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc: nothing root cannot write")
def test_a_read_only_project_has_its_environment_in_the_cache(tmp_path: Path) -> None:
    project = Path("/proc/self")
    assert not is_writable(project)
    folder = environment_folder(project, {"XDG_CACHE_HOME": str(tmp_path)})
    assert folder.parent == tmp_path / "tapml"
    home = environment_folder(project, {"HOME": str(tmp_path)})
    assert home == tmp_path / ".cache" / "tapml" / folder.name
    chosen = environment_folder(project, {"HOME": "/", "TAPML_CACHE_DIR": str(tmp_path / "caches")})
    assert chosen == tmp_path / "caches" / folder.name
    assert environment_folder(Path("/proc"), {"HOME": str(tmp_path)}) != home


def test_asking_whether_a_folder_can_be_written_leaves_nothing_in_it(tmp_path: Path) -> None:
    assert is_writable(tmp_path)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
