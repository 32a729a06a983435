"""What is expensive to make and never changed: one of the processes of the tests makes it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_artifact(
    name: str, tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], object]
) -> Path:
    """A folder that all processes of these tests have in common; none of them changes it.

    The first one that asks calls `make` with its path, which does not exist yet; the others wait.
    What a process leaves that fails in it, or is killed, is removed and made by the next one.
    """
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, whole = common / name, common / f"{name}.whole"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            whole.touch()
    return folder
