"""The examples in docstrings, run as a reader would run them: in an empty folder, on the CPU."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT, ROOT / "targets", ROOT / "rpc_server")
PACKAGES = ("tapml", "tapml_rpc", "tapml_targets")
MODULES = sorted(
    ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    for folder in FOLDERS
    for package in PACKAGES
    for path in (folder / package).rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)


def test_modules_with_examples_are_found() -> None:
    assert {"tapml", "tapml.plan.naming"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
