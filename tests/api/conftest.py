"""A device per platform, kept for all tests of the API."""

from __future__ import annotations

import pytest

import tapml as tml
from tapml.api.device import Device
from tests.conftest import RequireDevice


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPML_CACHE_DIR", str(tmp_path_factory.mktemp("api-cache")))
        yield


@pytest.fixture(scope="session")
def opencl(require_device: RequireDevice) -> Device:
    require_device("opencl")
    return tml.opencl()
