"""A project small enough that setting it up takes seconds and no download, with the real pip."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.environment import location


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root of the small project, with a copy of this project's set-up scripts."""
    monkeypatch.delenv("TAPML_VENV", raising=False)
    root = tmp_path / "project"
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parent / "small_project", root, ignore=without_caches)
    shutil.copytree(location.ROOT / "scripts", root / "scripts", ignore=without_caches)
    return root
