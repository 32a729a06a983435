"""A project small enough that setting it up takes seconds and no download, with the real pip."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.environment import location
from scripts.environment.setup import Environment, ensure


class SetUp(NamedTuple):
    """The small project and what its first set-up gave."""

    project: Path
    first: Environment


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root of the small project, with a copy of this project's set-up scripts."""
    monkeypatch.delenv("TAPML_VENV", raising=False)
    return small_project(tmp_path / "project")


@pytest.fixture
def set_up(made: SetUp, monkeypatch: pytest.MonkeyPatch) -> SetUp:
    """The same with its environment, for tests that look at it or go on with it."""
    monkeypatch.delenv("TAPML_VENV", raising=False)
    return made


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> SetUp:
    """Made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TAPML_VENV", raising=False)
        root = small_project(tmp_path_factory.mktemp("set-up") / "project")
        return SetUp(root, ensure(["a"], root))


def small_project(root: Path) -> Path:
    """Make it."""
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parent / "small_project", root, ignore=without_caches)
    shutil.copytree(location.ROOT / "scripts", root / "scripts", ignore=without_caches)
    return root
