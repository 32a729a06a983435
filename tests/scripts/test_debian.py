from __future__ import annotations

import os
import shutil

import pytest

from scripts.environment import debian


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian system: no dpkg-query")
def test_what_dpkg_does_not_list_is_missing() -> None:
    assert debian.missing_packages(["dpkg", "no-such-package-of-tapml"]) == [
        "no-such-package-of-tapml"
    ]


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian system: no dpkg-query")
def test_a_user_who_may_not_install_is_told_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert debian.install_missing(["no-such-package-of-tapml"]) == ["no-such-package-of-tapml"]
    assert "sudo apt-get install no-such-package-of-tapml" in capsys.readouterr().err


def test_another_system_is_told_what_to_look_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert debian.install_missing() == []
    assert "pocl-opencl-icd" in capsys.readouterr().err
