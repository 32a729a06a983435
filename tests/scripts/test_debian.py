from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from scripts import debian


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian system: no dpkg-query")
def test_what_dpkg_does_not_list_or_lists_too_old_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert debian.is_installed("dpkg")
    assert not debian.is_installed("no-such-package-of-tapml")
    monkeypatch.setitem(debian.LEAST_VERSIONS, "dpkg", "9999")
    assert not debian.is_installed("dpkg")


def test_packages_come_from_fresh_lists_whatever_the_old_ones_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    for name, does in (
        ("apt-get", f'echo "$2" >> {said}'),
        ("dpkg-query", "exit 1"),
    ):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert debian.install_missing(["chromium"]) == ["chromium"]
    assert said.read_text().split() == ["update", "install"]


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian system: no dpkg-query")
def test_a_user_who_may_not_install_is_told_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert debian.install_missing(["no-such-package-of-tapml"]) == ["no-such-package-of-tapml"]
    assert "sudo apt-get update && sudo apt-get install no-such-package-of-tapml" in (
        capsys.readouterr().err
    )


def test_another_system_is_told_what_to_look_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert debian.install_missing() == []
    assert "pocl-opencl-icd" in capsys.readouterr().err
