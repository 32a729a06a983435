"""The suite of every driver, with memory that this process cannot reach, as on a large GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml_targets.driver import DeviceDescription, Driver, HostReadable
from tapml_targets.vulkan.driver import open_device
from tests.targets.conformance import test_driver as driver_suite
from tests.targets.conformance import test_evaluator as evaluator_suite

add = driver_suite.add
loaded = evaluator_suite.loaded
_OTHER_MEMORY = (
    "test_memory_that_the_host_can_see_is_shown_read_only",
    "test_memory_that_the_host_can_write_is_filled_behind_the_launches_before",
)
for suite in (driver_suite, evaluator_suite):
    globals().update(
        (name, each)
        for name, each in vars(suite).items()
        if name.startswith("test_") and "platform" not in name and name not in _OTHER_MEMORY
    )


@pytest.fixture(scope="module")
def driver(device: DeviceDescription) -> Iterator[Driver]:
    """An open device whose buffers lie in memory of its own."""
    opened = open_device(device, staged=True)
    assert not isinstance(opened, HostReadable)
    yield opened
    opened.close()
