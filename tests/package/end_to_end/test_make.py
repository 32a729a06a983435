"""What a package holds, where it goes, and which sessions are refused."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tapml.models.tensor_file import ALIGNMENT
from tapml.package.files import PackageFiles
from tapml.package.from_session import open_finished
from tapml.package.make import make_package
from tapml.package.manifest import LIBRARY, MANIFEST, PLAN, README, RUN, WEIGHTS
from tapml.package.writer import new_package
from tapml.plan import format as plan_format
from tapml_targets.errors import InputError, SetupError
from tests.offload.commands import run_here
from tests.offload.sessions import FinishedSession
from tests.package.packages import Packages, manifest_of


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_manifest_names_every_file_with_its_hash(packages: Packages) -> None:
    held = contents(packages.folder)
    manifest = manifest_of(packages.folder)
    assert held.keys() == {MANIFEST, *manifest.files}
    assert {PLAN, LIBRARY, WEIGHTS, README, RUN} <= held.keys()
    for name, stored in manifest.files.items():
        assert stored.bytes == len(held[name])
        assert stored.sha256 == hashlib.sha256(held[name]).hexdigest()


def test_the_manifest_says_what_the_session_found(packages: Packages) -> None:
    manifest = manifest_of(packages.folder)
    report = packages.session.report
    assert manifest.model.weights_hash == report["model"]["weights_hash"]
    assert manifest.model.context_length == report["model"]["context_length"]
    assert manifest.device.fingerprint == report["target"]["fingerprint"]
    assert manifest.device.driver_version == report["target"]["driver_version"]
    assert manifest.verdict["text"] == report["outcome"]["text"]
    assert manifest.verdict["tests"] == report["summary"]["tests"]
    assert set(manifest.entries) == {"prefill", "decode"}
    assert "token_ids int32 [1, 1]" in manifest.entries["decode"]["inputs"]


def test_the_weights_are_those_of_the_session(packages: Packages) -> None:
    finished = open_finished(packages.session.folder)
    read = safetensors.numpy.load_file(packages.folder / WEIGHTS)
    assert read.keys() == finished.plan.weights.keys()
    for name, array in read.items():
        np.testing.assert_array_equal(array, finished.weights[name])


def test_nothing_is_written_into_the_session(packages: Packages, tmp_path: Path) -> None:
    """It may lie on a disk that is read-only."""

    def times() -> dict[Path, int]:
        folder = packages.session.folder
        return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}

    before = times()
    make_package(packages.session.folder, tmp_path / "package")
    assert times() == before


def test_the_plan_holds_what_a_run_needs_and_no_functions(packages: Packages) -> None:
    whole = (packages.session.folder / "finished" / PLAN).read_bytes()
    small = (packages.folder / PLAN).read_bytes()
    assert len(small) < len(whole) / 4
    plan = plan_format.unpack(small)
    assert all(each.function == "" and each.body is None for each in plan.operators.values())
    assert plan.operators.keys() == plan_format.unpack(whole).operators.keys()


def test_an_archive_holds_the_same_files_and_aligned_weights(packages: Packages) -> None:
    with zipfile.ZipFile(packages.archive) as archive:
        assert archive.testzip() is None
        held = {name: archive.read(name) for name in archive.namelist()}
    assert held == contents(packages.folder)
    files = PackageFiles(packages.archive)
    assert files.place(WEIGHTS).offset % ALIGNMENT == 0
    array = files.weights()["model.norm.weight"]
    assert array.__array_interface__["data"][0] % array.itemsize == 0


def test_the_same_session_gives_the_same_bytes(packages: Packages, tmp_path: Path) -> None:
    again = make_package(packages.session.folder, tmp_path / "x.zip", archive=True).path
    assert again.read_bytes() == packages.archive.read_bytes()


def test_the_default_place_is_beside_the_session(finished: FinishedSession, tmp_path: Path) -> None:
    session = finished.copy(tmp_path / "mine")
    assert make_package(session).path == tmp_path / "mine-package"
    assert make_package(session, archive=True).path == tmp_path / "mine-package.zip"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "mine", "mine-package", "mine-package.zip",
    ]  # fmt: skip


def test_a_name_that_ends_in_zip_asks_for_an_archive_and_other_archives_are_refused(
    packages: Packages, tmp_path: Path
) -> None:
    session = packages.session.folder
    ended = run_here("package", session, "--out", tmp_path / "x.zip", cache=packages.session.cache)
    assert ended.exit_code == 0, ended.errors
    assert (tmp_path / "x.zip").read_bytes() == packages.archive.read_bytes()
    for name, *form in (("x.tar.gz",), ("x.tgz", "--archive"), ("y.zip", "--browser")):
        ended = run_here(
            "package", session, "--out", tmp_path / name, *form, cache=packages.session.cache
        )
        assert ended.exit_code == 2
        assert "expected the name of a folder" in ended.error_lines[0]


def test_progress_counts_up_to_the_weights(packages: Packages, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    make_package(packages.session.folder, tmp_path / "p", progress=lambda *each: seen.append(each))
    assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.parametrize("archive", [False, True])
def test_a_package_that_is_there_stays_unless_forced(
    packages: Packages, tmp_path: Path, archive: bool
) -> None:
    place = tmp_path / "place"
    session = packages.session.folder
    make_package(session, place, archive=archive)
    with pytest.raises(InputError, match="exists already: --force replaces it"):
        make_package(session, place, archive=archive)
    make_package(session, place, archive=archive, force=True)
    assert PackageFiles(place).read_all()
    with pytest.raises(InputError, match="does not replace it"):
        make_package(session, place, archive=not archive, force=True)


@pytest.mark.parametrize("archive", [False, True])
def test_what_is_no_package_is_never_replaced(
    packages: Packages, tmp_path: Path, archive: bool
) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "thesis.tex").write_text("...")
    place = folder / "thesis.tex" if archive else folder
    with pytest.raises(InputError, match="choose another place"):
        make_package(packages.session.folder, place, archive=archive, force=True)
    assert (folder / "thesis.tex").read_text() == "..."


def test_more_than_the_disk_has_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with (
        pytest.raises(SetupError, match="MB free: free some space"),
        new_package(tmp_path / "p", archive=False, nbytes=1 << 60),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_has_not_finished_is_refused_with_the_operators_that_lack(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    (session / "finished" / "library.msgpack").unlink()
    report = json.loads((session / "report.json").read_text())
    for operator, state in zip(report["operators"], ("kept", "failed"), strict=False):
        operator["state"] = state
    (session / "report.json").write_text(json.dumps(report))
    kept, failed = (each["name"] for each in report["operators"][:2])
    with pytest.raises(InputError) as refusal:
        make_package(session, tmp_path / "p")
    assert f"failed: {failed}; kept on the source: {kept}" in str(refusal.value)
    assert f"tapml offload --session {session}" in str(refusal.value)
    assert not (tmp_path / "p").exists()


def test_a_session_without_its_report_is_refused(finished: FinishedSession, tmp_path: Path) -> None:
    session = finished.copy(tmp_path / "session")
    (session / "report.json").write_text("{")
    with pytest.raises(InputError, match=r"report .* is missing, damaged or not a pass"):
        make_package(session, tmp_path / "p")
