"""A process killed or a disk filled while a package is written: nothing there looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.package.files import PackageFiles, is_package
from tests.offload.commands import run_process
from tests.package.packages import Packages

pytestmark = pytest.mark.slow


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
