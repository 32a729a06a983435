"""Where Oclgrind is looked for, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.check import oclgrind
from tapml.check.checker import Checker, open_checker
from tapml_targets.errors import SetupError


def test_it_is_found_where_it_is_installed_or_named(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(oclgrind.VARIABLE, raising=False)
    found = oclgrind.find_oclgrind()
    assert found.name.startswith("liboclgrind-rt-icd")
    monkeypatch.setenv(oclgrind.VARIABLE, str(found))
    monkeypatch.setattr(oclgrind, "_DISTRIBUTION", "a-distribution-that-is-not-there")
    assert oclgrind.find_oclgrind() == found


def test_the_drivers_of_the_system_are_looked_through(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = oclgrind.find_oclgrind()
    monkeypatch.delenv(oclgrind.VARIABLE, raising=False)
    monkeypatch.setattr(oclgrind, "_DISTRIBUTION", "a-distribution-that-is-not-there")
    monkeypatch.setattr(
        oclgrind, "icd_files", lambda: {"a.icd": b"libother.so", "b.icd": f"{library}\n".encode()}
    )
    assert oclgrind.find_oclgrind() == library


def test_without_it_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(oclgrind.VARIABLE, raising=False)
    monkeypatch.setattr(oclgrind, "_DISTRIBUTION", "a-distribution-that-is-not-there")
    monkeypatch.setattr(oclgrind, "icd_files", lambda: {"a.icd": b"libother.so"})
    with pytest.raises(SetupError, match=r"\[check\]"), open_checker():
        pass


def test_a_name_that_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(oclgrind.VARIABLE, str(tmp_path / "liboclgrind-rt-icd.so"))
    with pytest.raises(SetupError, match="which is no file"):
        oclgrind.find_oclgrind()


def test_a_library_that_is_no_driver_is_an_error_and_not_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "liboclgrind-rt-icd.so"
    fake.write_bytes(b"no library")
    monkeypatch.setenv(oclgrind.VARIABLE, str(fake))
    try:
        with open_checker() as opened:
            assert opened.session.device.device_type == "checker"
    except SetupError as error:
        assert str(fake) in str(error)


def test_it_takes_kernels_made_for_any_device(checker: Checker) -> None:
    limits = checker.session.device.limits
    assert checker.session.device.device_type == "checker"
    assert limits.max_shared_memory_bytes >= 1 << 18
    assert limits.max_threads_per_block >= 1024
