from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scripts.environment.record import (
    RECORD_NAME,
    Record,
    is_intact,
    python_of,
    read_record,
    requirements_key,
    write_record,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an interpreter, behind a link as in a virtual environment."""
    (tmp_path / "python3.11").touch()
    python_of(tmp_path).parent.mkdir()
    python_of(tmp_path).symlink_to(tmp_path / "python3.11")
    return tmp_path


def finished(folder: Path) -> Record:
    """The record of a finished set-up of `folder`."""
    return Record(True, "key", ("cpu", "host"), str((folder / "python3.11").resolve()))


def test_a_record_reads_back_as_it_was_written(folder: Path) -> None:
    write_record(folder, finished(folder))
    assert read_record(folder) == finished(folder)
    assert [path.name for path in folder.glob(f"{RECORD_NAME}*")] == [RECORD_NAME]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"finished": true}', "\ufffd"])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD_NAME).write_text(text, encoding="utf-8")
    assert read_record(tmp_path) is None


def test_an_environment_is_intact_when_finished_and_its_python_is_the_same(folder: Path) -> None:
    record = finished(folder)
    assert is_intact(folder, record)
    assert not is_intact(folder, None)
    assert not is_intact(folder, dataclasses.replace(record, finished=False))


def test_an_upgraded_or_vanished_python_asks_for_a_new_environment(folder: Path) -> None:
    record = finished(folder)
    python_of(folder).unlink()
    assert not is_intact(folder, record)
    (folder / "python3.12").touch()
    python_of(folder).symlink_to(folder / "python3.12")
    assert not is_intact(folder, record)


def test_the_key_follows_the_requirements_and_no_setting_of_a_tool(tmp_path: Path) -> None:
    def key(pyproject: str, constraints: str) -> str:
        (tmp_path / "pyproject.toml").write_text(pyproject)
        (tmp_path / "constraints.txt").write_text(constraints)
        return requirements_key(tmp_path)

    first = key("[project]\ndependencies = ['a']", "a==1")
    assert key("[project]\ndependencies = ['a', 'b']", "a==1") != first
    assert key("[project]\ndependencies = ['a']", "a==2") != first
    assert key("[project]\ndependencies = ['a']\n[tool.ruff]\nline-length = 1", "a==1") == first
