"""An environment with the wheel and its base requirements: what a device gets."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.shared_artifact import shared_artifact

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class BaseInstall:
    """A virtual environment that holds the wheel with its base requirements and pyopencl.

    Attributes
    ----------
    folder
        The environment's folder.
    wheel
        The wheel that is installed in it.
    """

    folder: Path
    wheel: Path

    def run(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run one of the environment's programs away from the source tree, with `text` as input."""
        variables = {
            name: value
            for name, value in os.environ.items()
            if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
        }
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            check=False,
            cwd=self.folder,
            env=variables,
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture(scope="session")
def base_install(tmp_path_factory: pytest.TempPathFactory) -> BaseInstall:
    """The wheel, built from the tree and installed with pyopencl and nothing of the host."""
    folder = shared_artifact("base", tmp_path_factory, install)
    return BaseInstall(folder / "venv", next(folder.glob("tapml-*.whl")))


def install(folder: Path) -> None:
    """Make the environment in a folder."""
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    wheel = next(folder.glob("tapml-*.whl"))
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run(
        [*pip, "--python", python, "install", *constraints, f"{wheel}[opencl]"],
        check=True,
    )
