"""A device per platform, kept for all tests of the API."""

from __future__ import annotations

import pytest

import tapml as tml
from tapml.api.device import Device
from tests.conftest import RequireDevice


@pytest.fixture(scope="session")
def opencl(require_device: RequireDevice) -> Device:
    require_device("opencl")
    return tml.opencl()
