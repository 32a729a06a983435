"""Files are whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tapml.durable.files import write_bytes, write_json, write_text
from tapml_targets.errors import SetupError


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"a": [1, 2.5, None]})
    write_json(path, {"b": "ü"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"b": "ü"}
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_what_cannot_be_written_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_text(path, "old")
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".page.html.partial").write_text("half")
    write_text(tmp_path / "page.html", "whole")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"missing/page.*free some space or fix the permissions"):
        write_bytes(tmp_path / "missing" / "page", b"")
