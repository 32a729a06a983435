"""Folders are replaced as a whole, wherever the process that does it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tapml.durable.files import _exchange, recover_folder, remove_leftovers, replace_folder
from tapml_targets.failpoints import VARIABLE

_REPLACE = """
import sys
from pathlib import Path
from tapml.durable.files import replace_folder
with replace_folder(Path(sys.argv[1])) as made:
    for name in ("a", "b"):
        (made / name).write_text("new")
"""
# What the library does on a file system that cannot exchange names.
_WITHOUT_EXCHANGE = """
from tapml.durable import files
files._exchange = lambda one, other: False
"""


def start_replacing(folder: Path, fault: str, way: str) -> subprocess.Popen[bytes]:
    code = _REPLACE if way == "one exchange" else _WITHOUT_EXCHANGE + _REPLACE
    environment = {**os.environ, VARIABLE: fault}
    return subprocess.Popen([sys.executable, "-c", code, folder], env=environment)


def replaced_in_a_process(folder: Path, fault: str, way: str) -> int:
    with start_replacing(folder, fault, way) as process:
        return process.wait(60)


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


@pytest.fixture(scope="module", params=["one exchange", "two renames"])
def way(request: pytest.FixtureRequest) -> str:
    """How the kernel gives the name to the new folder."""
    return str(request.param)


@pytest.fixture(scope="module")
def sites(way: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every boundary that replacing a folder crosses, as faults name it."""
    root = tmp_path_factory.mktemp("sites")
    folder = fill(root / "parent" / "out")
    assert replaced_in_a_process(folder, f"record={root / 'record'}", way) == 0
    seen: dict[str, int] = {}
    found = []
    for line in (root / "record").read_text().splitlines():
        seen[line] = seen.get(line, 0) + 1
        found.append(f"{line.replace(str(folder.parent), '*')}#{seen[line]}")
    return found


def test_the_kernel_of_this_machine_exchanges_two_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert _exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    assert (tmp_path / "b" / "a").exists()


def test_killed_at_any_boundary_the_old_folder_or_the_new_is_there(
    way: str, sites: list[str], tmp_path: Path
) -> None:
    outcomes = set()
    for site in sites:
        folder = fill(tmp_path / "parent" / "out")
        assert replaced_in_a_process(folder, f"kill@{site}", way) == -signal.SIGKILL, site
        gone = not folder.exists()
        said = recover_folder(folder)
        assert gone == ("was restored" in said), site
        outcomes.add((gone, content(folder)))
        assert recover_folder(folder) == ""
        with replace_folder(folder) as made:
            for name in ("a", "b"):
                (made / name).write_text("newest")
        assert content(folder) == "newest"
        assert [each.name for each in folder.parent.iterdir()] == ["out"]
    lost = {(True, "old")} if way == "two renames" else set()
    assert outcomes == {(False, "old"), (False, "new")} | lost


def test_the_process_that_holds_the_folder_above_removes_what_is_left(
    way: str, sites: list[str], tmp_path: Path
) -> None:
    for site in (each for each in sites if "rename" in each or "remove" in each):
        folder = fill(tmp_path / "parent" / "out")
        assert replaced_in_a_process(folder, f"kill@{site}", way) == -signal.SIGKILL, site
        remove_leftovers(folder.parent.parent)
        assert content(folder) in {"old", "new"}
        assert [each.name for each in folder.parent.iterdir()] == ["out"]


def test_a_second_process_that_is_killed_before_anything_keeps_the_first_ones_folder(
    tmp_path: Path,
) -> None:
    folder = fill(tmp_path / "parent" / "out")
    fault = "kill@after rename */.out.replaced"
    assert replaced_in_a_process(folder, fault, "two renames") == -signal.SIGKILL
    assert not folder.exists()
    # The next begins by giving it back: what fails after that leaves what was there.
    assert replaced_in_a_process(folder, "full@before write */out", "two renames") == 1
    assert content(folder) == "old"


def test_a_reader_waits_for_a_writer_that_is_stopped_between_its_renames(tmp_path: Path) -> None:
    folder = fill(tmp_path / "parent" / "out")
    fault = "stop@after rename */.out.replaced"
    with start_replacing(folder, fault, "two renames") as writer:
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
        assert not folder.exists()
        with ThreadPoolExecutor(1) as threads:
            reader = threads.submit(recover_folder, folder)
            # A reader that believes the writer dead is done by then; one that waits cannot be.
            assert not wait((reader,), 0.5).done
            writer.send_signal(signal.SIGCONT)
            assert writer.wait(60) == 0
            assert reader.result(60) == ""
    assert content(folder) == "new"


def test_a_folder_has_its_name_at_every_moment_where_the_kernel_exchanges_names(
    tmp_path: Path,
) -> None:
    folder = fill(tmp_path / "parent" / "out")
    with start_replacing(folder, "stop@after rename */out", "one exchange") as writer:
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
        assert recover_folder(folder) == ""
        assert content(folder) == "new"
        writer.send_signal(signal.SIGCONT)
        assert writer.wait(60) == 0
