from __future__ import annotations

import ast
import sys

import pytest

from scripts.environment import ROOT
from scripts.python_version import newer_python, require_python

ENTRY_SCRIPTS = ("demo.py", "python_version.py", "test.py")


@pytest.mark.parametrize("name", ENTRY_SCRIPTS)
def test_an_old_python_can_read_the_script_that_turns_it_away(name: str) -> None:
    ast.parse((ROOT / "scripts" / name).read_text("utf-8"), feature_version=(3, 6))


def test_an_old_python_is_turned_away_with_what_to_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts/demo.py", "--help"])
    with pytest.raises(SystemExit) as caught:
        require_python((3, 9, 18))
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "needs Python 3.11 or newer; this is 3.9.18" in said
    assert (f"Run instead: {newer_python()} scripts/demo.py --help" in said) == bool(newer_python())


def test_without_a_newer_python_the_way_to_get_one_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit):
        require_python((3, 10, 1))
    assert "Install Python 3.11 or newer" in capsys.readouterr().err


def test_this_python_passes() -> None:
    require_python()
