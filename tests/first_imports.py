"""Each process of a run begins with its own share of the test files.

pytest rewrites the asserts of every file and keeps the result on disk, but all processes read the
files in one order at the same time: each would rewrite all of them.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import pytest
from _pytest.python import importtestmodule


def share(files: list[Path], worker: str, workers: int) -> list[Path]:
    """Every `workers`-th file, from the one on that has the number of a process ``gw0``."""
    return files[int(worker.removeprefix("gw")) % workers :: workers]


def _files(config: pytest.Config) -> list[Path]:
    """The test files below the folders that were asked for, without those that are left out."""
    left_out = [f"*/{name}/*" for name in config.getini("norecursedirs")]
    left_out += config.getoption("ignore_glob") or []
    folders = [Path(config.invocation_params.dir, each) for each in config.args]
    return sorted(
        file
        for folder in folders
        for file in folder.rglob("test_*.py")
        if not any(fnmatch(str(file), pattern) for pattern in left_out)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import this process's share; the collection does the rest and reports what fails."""
    config, worker = session.config, os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or sys.dont_write_bytecode:
        return
    for file in share(_files(config), worker, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])):
        # A module may say itself that it is to be skipped.
        with suppress(Exception, pytest.skip.Exception):
            importtestmodule(file, config)
