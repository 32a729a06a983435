from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RequireDevice
from tests.shared_artifact import shared_artifact


def without_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process and its children a machine on which no OpenCL driver is installed."""
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))


def test_an_absent_device_skips_the_test_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_device: RequireDevice
) -> None:
    without_devices(tmp_path, monkeypatch)
    monkeypatch.delenv("TAPML_REQUIRE_DEVICES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no opencl device for float32 here"):
        require_device("opencl")


def test_an_absent_device_fails_the_test_where_it_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_device: RequireDevice
) -> None:
    without_devices(tmp_path, monkeypatch)
    monkeypatch.setenv("TAPML_REQUIRE_DEVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="no opencl device for float32 here"):
        require_device("opencl")


def test_files_that_share_what_is_slow_to_make_go_to_one_process() -> None:
    pytest.importorskip("xdist")
    from tests.scheduling import TOGETHER, SharedScheduling

    root = Path(__file__).resolve().parent.parent
    assert all(
        (root / each).is_file() or list((root / each).rglob("test_*.py")) for each in TOGETHER
    )
    scheduling = object.__new__(SharedScheduling)
    (one, other) = sorted((root / "tests" / "mutants").glob("test_*.py"))[:2]
    scopes = {
        scheduling._split_scope(f"{file.relative_to(root).as_posix()}::test_it[a::b]")
        for file in (one, other, root / "tests" / "session" / "test_lock.py")
    }
    assert scopes == {TOGETHER["tests/mutants"], "tests/session/test_lock.py"}


def test_what_a_process_left_half_made_is_made_by_the_next_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = []

    def make(folder: Path) -> None:
        folder.mkdir()
        made.append(folder)
        if len(made) == 1:
            raise OSError("ended in the middle")
        (folder / "all").touch()

    with pytest.raises(OSError, match="in the middle"):
        shared_artifact("half-made", tmp_path_factory, make)
    found = {shared_artifact("half-made", tmp_path_factory, make) for _ in range(2)}
    assert found == set(made)
    assert len(made) == 2
    assert (made[0] / "all").exists()


def test_present_devices_are_of_the_kind_and_the_vendor_asked_for(
    require_device: RequireDevice,
) -> None:
    for vendor in ("Portable Computing", "Intel"):
        for device in require_device("opencl", vendor=vendor):
            assert device.platform == "opencl"
            assert vendor in device.vendor_platform
            assert device.device_type != "checker"
