"""Folders are replaced as a whole, wherever the process that does it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tapml.durable.files import recover_folder, remove_left, replace_folder
from tapml_targets.boundaries import VARIABLE

_REPLACE = """
import sys
from pathlib import Path
from tapml.durable.files import replace_folder
with replace_folder(Path(sys.argv[1])) as made:
    for name in ("a", "b"):
        (made / name).write_text("new")
"""


def replaced_in_a_process(folder: Path, fault: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _REPLACE, folder], env={**os.environ, VARIABLE: fault}, check=False
    )
    return done.returncode


def fill(folder: Path) -> Path:
    """The folder as it was before, alone in its parent."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_text("old")
    return folder


def content(folder: Path) -> str:
    """Which of the two it is: it is always one of them, whole."""
    texts = {each.read_text() for each in folder.iterdir()}
    assert [each.name for each in sorted(folder.iterdir())] == ["a", "b"]
    (text,) = texts
    return text


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every boundary that replacing a folder crosses, as faults name it."""
    root = tmp_path_factory.mktemp("sites")
    folder = fill(root / "parent" / "out")
    assert replaced_in_a_process(folder, f"record={root / 'record'}") == 0
    seen: dict[str, int] = {}
    found = []
    for line in (root / "record").read_text().splitlines():
        seen[line] = seen.get(line, 0) + 1
        found.append(f"{line.replace(str(folder.parent), '*')}#{seen[line]}")
    return found


def test_it_crosses_three_renames(sites: list[str]) -> None:
    assert len([each for each in sites if "rename" in each]) == 6
    assert {each.split()[1] for each in sites} == {"write", "fsync", "rename", "remove"}


def test_killed_at_any_boundary_the_old_folder_or_the_new_is_there_again(
    sites: list[str], tmp_path: Path
) -> None:
    outcomes = set()
    for site in sites:
        folder = fill(tmp_path / "parent" / "out")
        assert replaced_in_a_process(folder, f"kill@{site}") == -signal.SIGKILL, site
        gone = not folder.exists()
        said = recover_folder(folder)
        assert not gone or "is there again" in said, site
        outcomes.add((gone, content(folder)))
        assert recover_folder(folder) == ""
        left = {each.name for each in folder.parent.iterdir()} - {"out"}
        assert left <= {".out.partial"}, "what was being written may be another process's"
        with replace_folder(folder) as made:
            for name in ("a", "b"):
                (made / name).write_text("newest")
        assert content(folder) == "newest"
        assert [each.name for each in folder.parent.iterdir()] == ["out"]
    assert outcomes == {(False, "old"), (True, "old"), (False, "new")}


def test_whoever_holds_the_folder_above_brings_it_in_order(
    sites: list[str], tmp_path: Path
) -> None:
    for site in (each for each in sites if "rename" in each or "remove" in each):
        folder = fill(tmp_path / "parent" / "out")
        assert replaced_in_a_process(folder, f"kill@{site}") == -signal.SIGKILL, site
        remove_left(folder.parent.parent)
        assert content(folder) in {"old", "new"}
        assert [each.name for each in folder.parent.iterdir()] == ["out"]


def test_a_second_process_that_is_killed_before_anything_keeps_the_first_ones_folder(
    tmp_path: Path,
) -> None:
    folder = fill(tmp_path / "parent" / "out")
    fault = "kill@after rename */out"
    assert replaced_in_a_process(folder, fault) == -signal.SIGKILL
    assert not folder.exists()
    # The next begins by giving it back: what fails after that leaves what was there.
    assert replaced_in_a_process(folder, "full@before write */out") == 1
    assert content(folder) == "old"
