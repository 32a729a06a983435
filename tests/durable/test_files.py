"""Files are whole or not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.durable.files import write_bytes, write_json, write_text
from tapml_targets.errors import SetupError
from tapml_targets.failpoints import VARIABLE


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"a": [1, 2.5, None]})
    write_json(path, {"b": "ü"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"b": "ü"}
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(path, "content")
        assert os.read(reader, 64) == b"content"
    finally:
        os.close(reader)
    assert path.is_fifo()
    with pytest.raises(SetupError, match="No space left"):
        write_text(Path("/dev/full"), "content")


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


_WRITE = """
import sys
from pathlib import Path
from tapml.durable.files import write_text
write_text(Path(sys.argv[1]), sys.argv[2])
"""


def test_two_processes_that_write_one_file_do_so_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    environment = {**os.environ, VARIABLE: "stop@after write */page.html"}
    command = [sys.executable, "-c", _WRITE, str(path)]
    with subprocess.Popen([*command, "first"], env=environment) as first:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
        with subprocess.Popen([*command, "second"]) as second:
            # It writes into no file that the first one has under way.
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(0.5)
            assert (tmp_path / ".page.html.partial").read_text() == "first"
            first.send_signal(signal.SIGCONT)
            assert (first.wait(60), second.wait(60)) == (0, 0)
    assert path.read_text() == "second"
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_file_that_need_not_survive_crosses_no_boundary(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tapml.durable.files import replace_file\n"
        "with replace_file(Path(sys.argv[1]), durable=False) as partial: partial.write_text('x')"
    )
    environment = {**os.environ, VARIABLE: f"record={tmp_path / 'record'}"}
    command = [sys.executable, "-c", code, str(tmp_path / "live.json")]
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert [each.name for each in tmp_path.iterdir()] == ["live.json"]
