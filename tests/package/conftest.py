"""One session packaged once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml.package.load import load_package
from tapml.package.target_model import TargetModel
from tests.offload.sessions import FinishedSession
from tests.package.packages import Packages, pack


@pytest.fixture(scope="session")
def packages(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """The tiny model as a folder and as an archive."""
    return pack(finished, tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def loaded(packages: Packages) -> Iterator[TargetModel]:
    """The archive on its device."""
    with load_package(packages.archive) as model:
        yield model
