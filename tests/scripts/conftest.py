"""A project small enough that setting it up takes seconds and no download, with the real pip."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.environment import location

# A build backend inside the project: pip has nothing to fetch. Every build is noted in builds.txt;
# while there is a file named "hold" the build waits, as a long download would.
BACKEND = """
import os, time, zipfile
from pathlib import Path

HERE = Path(__file__).parent
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
METADATA = """Metadata-Version: 2.1
Name: small
Version: 1.0
Provides-Extra: a
Provides-Extra: b
"""

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with open(HERE / "builds.txt", "a") as builds:
        builds.write(f"{os.getpid()}\\n")
    while (HERE / "hold").exists():
        time.sleep(0.02)
    if (HERE / "broken").exists():
        raise OSError(28, "No space left on device")
    name = "small-1.0-py3-none-any.whl"
    info = "small-1.0.dist-info"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w") as wheel:
        wheel.writestr("small.pth", str(HERE))
        wheel.writestr(f"{info}/WHEEL", WHEEL)
        wheel.writestr(f"{info}/METADATA", METADATA)
        wheel.writestr(f"{info}/RECORD", "")
    return name

build_wheel = build_editable
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root of a small project with a copy of this project's set-up scripts."""
    monkeypatch.delenv("TAPML_VENV", raising=False)
    root = tmp_path / "project"
    root.mkdir()
    (root / "backend.py").write_text(BACKEND)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "constraints.txt").write_text("torch==2.13.0\n")
    shutil.copytree(
        location.ROOT / "scripts",
        root / "scripts",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return root
