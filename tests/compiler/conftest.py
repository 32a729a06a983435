"""The device that compiled operators run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml_targets.driver import Driver
from tapml_targets.opencl.driver import open_device
from tapml_targets.webgpu.driver import open_device as open_adapter
from tests.conftest import RequireDevice


@pytest.fixture(scope="session")
def driver(require_device: RequireDevice) -> Iterator[Driver]:
    """The best OpenCL device of this machine, open."""
    opened = open_device(require_device("opencl")[0])
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def adapter(require_device: RequireDevice) -> Iterator[Driver]:
    """The best WebGPU device of this machine, open."""
    opened = open_adapter(require_device("webgpu")[0])
    yield opened
    opened.close()
