"""A process killed or a disk filled while a package is written: nothing there looks like one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tapml.package.files import PackageFiles, is_package
from tapml.package.load import load_package
from tests.offload.commands import run_here, run_process
from tests.package.packages import Packages, exchange


@pytest.mark.parametrize("archive", [(), ("--archive",)], ids=["folder", "archive"])
@pytest.mark.parametrize("fault", ["kill@before rename */out", "full@before fsync *out*"])
def test_what_ends_on_the_way_leaves_no_package_and_is_made_again(
    packages: Packages, tmp_path: Path, archive: tuple[str, ...], fault: str
) -> None:
    out = tmp_path / "out"
    command: tuple[str | Path, ...] = ("package", packages.session.folder, "--out", out, *archive)
    cache = packages.session.cache
    ended = run_process(*command, cache=cache, TAPML_FAULT=fault)
    if fault.startswith("kill"):
        assert ended.exit_code == -9
    else:
        assert ended.exit_code == 2
        (line,) = ended.error_lines
        assert "free some space" in line
        assert list(tmp_path.iterdir()) == []
    assert not out.exists()
    again = run_process(*command, cache=cache)
    assert again.exit_code == 0, again.errors
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    whole = packages.archive if archive else packages.folder
    assert PackageFiles(out).read_all() == PackageFiles(whole).read_all()


def test_a_package_that_is_there_outlives_a_full_disk(packages: Packages, tmp_path: Path) -> None:
    out = packages.copy(tmp_path / "out")
    ended = run_process(
        "package", packages.session.folder, "--out", out, "--force",
        cache=packages.session.cache, TAPML_FAULT="full@before write *",
    )  # fmt: skip
    assert ended.exit_code == 2
    assert is_package(out)
    assert PackageFiles(out).read_all() == PackageFiles(packages.folder).read_all()


SITES = ["before rename */out", "after rename */out", "before remove */.out.partial"]


@pytest.mark.parametrize(
    ("command", "site"),
    [*(("package", site) for site in SITES), ("run", SITES[1]), ("load_package", SITES[2])],
)
def test_killed_on_either_side_of_the_exchange_a_package_is_there_for_the_next_command(
    packages: Packages, killed: dict[str, Path], tmp_path: Path, command: str, site: str
) -> None:
    out = tmp_path / "out"
    shutil.copytree(killed[site], tmp_path, dirs_exist_ok=True)
    PackageFiles(out).read_all()
    session = packages.session
    if command == "package":
        ended = run_here("package", session.folder, "--out", out, "--force", cache=session.cache)
        assert ended.exit_code == 0, ended.errors
    elif command == "run":
        ended = run_here("run", out, "--tokens", "1", "--max-new-tokens", "1", cache=session.cache)
        assert ended.exit_code == 0, ended.errors
    else:
        load_package(out).close()
    marked = (out / "README.txt").read_bytes() == b"the one before"
    assert marked == (command != "package" and site == SITES[0])
    PackageFiles(out).read_all()
    assert {each.name for each in tmp_path.iterdir()} <= {"out", ".out.partial"}


def test_a_package_whose_name_a_killed_process_took_is_there_for_the_next_command(
    packages: Packages, tmp_path: Path
) -> None:
    """Where the file system cannot exchange two names, a process may be killed in between."""
    out = tmp_path / "out"
    packages.copy(tmp_path / ".out.replaced")
    with pytest.warns(UserWarning, match="the old folder was restored"):
        load_package(out).close()
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@pytest.fixture(scope="module")
def killed(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What lies there after `tapml package --force` was killed, by where it was."""
    found = {}
    for site in SITES:
        folder = tmp_path_factory.mktemp("killed")
        exchange(packages.copy(folder / "out"), "README.txt", b"the one before")
        ended = run_process(
            "package", packages.session.folder, "--out", folder / "out", "--force",
            cache=packages.session.cache, TAPML_FAULT=f"kill@{site}",
        )  # fmt: skip
        assert ended.exit_code == -9, site
        found[site] = folder
    return found
