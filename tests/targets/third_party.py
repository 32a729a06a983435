"""The platform `abacus` as an installed distribution: its package and what names it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tapml_targets import platforms

PACKAGE = Path(__file__).parent / "abacus" / "tapml_abacus"
PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text("utf-8"))["project"]


def install(folder: Path, offers: Mapping[str, str] | None = None, name: str = "abacus") -> Path:
    """Make `folder` hold the distribution ``tapml-<name>``, as an installer does.

    Parameters
    ----------
    offers
        Its entry points: import packages by platform; by default those of its ``pyproject.toml``.
    """
    folder.mkdir(exist_ok=True)
    noted = folder / f"tapml_{name}-1.0.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tapml-{name}\nVersion: 1.0\n")
    named = offers or PROJECT["entry-points"]["tapml.platforms"]
    lines = [f"{platform} = {package}" for platform, package in named.items()]
    (noted / "entry_points.txt").write_text("\n".join(["[tapml.platforms]", *lines, ""]))
    shutil.copytree(
        PACKAGE,
        folder / PACKAGE.name,
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    return folder


def tapml_in(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, where the packages of `site` are installed."""
    return subprocess.run(
        [sys.executable, "-m", "tapml.cli.main", *arguments],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def forget() -> None:
    """Have the platforms looked up again."""
    for found in vars(platforms).values():
        if hasattr(found, "cache_clear"):
            found.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages with the platform `abacus`, which this process uses."""
    folder = install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(folder))
    forget()
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE.name]:
        del sys.modules[name]
    monkeypatch.undo()
    forget()
