"""Where Oclgrind is looked for, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.check.checker import Checker, open_checker
from tapml_targets.errors import SetupError
from tapml_targets.opencl import checker as oclgrind


def test_it_is_found_where_it_is_installed_or_named(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(oclgrind.VARIABLE, raising=False)
    found = oclgrind.find_checker()
    assert found.name.startswith("liboclgrind-rt-icd")
    monkeypatch.setenv(oclgrind.VARIABLE, str(found))
    monkeypatch.setattr(oclgrind, "_DISTRIBUTION", "a-distribution-that-is-not-there")
    assert oclgrind.find_checker() == found


def test_the_drivers_of_the_system_are_looked_through(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = oclgrind.find_checker()
    monkeypatch.delenv(oclgrind.VARIABLE, raising=False)
    monkeypatch.setattr(oclgrind, "_DISTRIBUTION", "a-distribution-that-is-not-there")
    monkeypatch.setattr(
        oclgrind, "icd_files", lambda: {"a.icd": b"libother.so", "b.icd": f"{library}\n".encode()}
    )
    assert oclgrind.find_checker() == library


def test_without_it_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(oclgrind.VARIABLE, raising=False)
    monkeypatch.setattr(oclgrind, "_DISTRIBUTION", "a-distribution-that-is-not-there")
    monkeypatch.setattr(oclgrind, "icd_files", lambda: {"a.icd": b"libother.so"})
    with pytest.raises(SetupError, match=r"\[check\]"), open_checker("opencl"):
        pass


def test_a_name_that_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(oclgrind.VARIABLE, str(tmp_path / "liboclgrind-rt-icd.so"))
    with pytest.raises(SetupError, match="which is not a file"):
        oclgrind.find_checker()


def test_a_file_that_is_no_library_is_refused_and_no_other_simulator_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "liboclgrind-rt-icd.so"
    fake.write_bytes(b"no library")
    monkeypatch.setenv(oclgrind.VARIABLE, str(fake))
    with (
        pytest.raises(SetupError, match=f"{fake}, which is not a shared library"),
        open_checker("opencl"),
    ):
        pass


def test_it_takes_kernels_made_for_any_device(checker: Checker) -> None:
    limits = checker.session.device.limits
    assert checker.session.device.device_type == "checker"
    assert limits.max_shared_memory_bytes >= 1 << 18
    assert limits.max_threads_per_block >= 1024
