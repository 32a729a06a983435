"""What is expensive to make and never changed: one of the processes of the tests makes it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def shared_artifact(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A path that all processes of these tests have in common, with nobody else at it.

    Whoever finds nothing there makes it; what is there another process has made whole.
    """
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield common / name
