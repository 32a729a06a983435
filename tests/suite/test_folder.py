"""A suite takes its name as a whole, wherever the process that carves it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.durable.files import recover_folder
from tapml.suite.folder import partial_folder, publish
from tapml_targets.errors import InputError
from tapml_targets.failpoints import VARIABLE

# A suite is an index; what is in it does not matter here.
_REPLACE = """
import sys
from pathlib import Path
from tapml.suite.index import create_index
from tapml.suite.folder import partial_folder, publish
target, text = Path(sys.argv[1]), sys.argv[2]
with partial_folder(target) as folder:
    create_index(folder, {}).close()
    (folder / "content").write_text(text)
    publish(folder, target, overwrite=True, durable=True)
"""
_WITHOUT_EXCHANGE = """
from tapml.durable import files
files._exchange = lambda one, other: False
"""


def replace(target: Path, text: str, way: str, fault: str = "") -> int:
    code = _REPLACE if way == "one exchange" else _WITHOUT_EXCHANGE + _REPLACE
    environment = {**os.environ, VARIABLE: fault}
    command = [sys.executable, "-c", code, str(target), text]
    return subprocess.run(command, env=environment, check=False, timeout=60).returncode


@pytest.mark.parametrize("way", ["one exchange", "two renames"])
def test_killed_while_it_is_replaced_the_old_suite_or_the_new_is_there(
    tmp_path: Path, way: str
) -> None:
    record, target = tmp_path / "record", tmp_path / "folder" / "s"
    for text in ("old", "new"):
        assert replace(target, text, way, f"record={record}" if text == "new" else "") == 0
    sites = [line for line in record.read_text().splitlines() if "rename" in line]
    assert len(sites) == (2 if way == "one exchange" else 6)
    for site in sites:
        assert replace(target, "old", way) == 0
        assert replace(target, "new", way, f"kill@{site}") == -signal.SIGKILL
        recover_folder(target)
        assert (target / "content").read_text() in {"old", "new"}, site
        assert replace(target, "newest", way) == 0
        assert (target / "content").read_text() == "newest"
        assert [each.name for each in target.parent.iterdir()] == ["s"], site


def test_a_suite_that_came_meanwhile_is_not_replaced_unasked(tmp_path: Path) -> None:
    target = tmp_path / "s"
    with partial_folder(target) as folder:
        assert replace(tmp_path / "other", "other", "one exchange") == 0
        (tmp_path / "other").rename(target)
        with pytest.raises(InputError, match="exists"):
            publish(folder, target, overwrite=False, durable=False)
    assert (target / "content").read_text() == "other"
    assert [each.name for each in tmp_path.iterdir()] == ["s"]
