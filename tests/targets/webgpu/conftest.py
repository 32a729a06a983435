"""Every test that takes `driver` runs on every WebGPU adapter of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tapml_targets import ranking
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.errors import TapmlError
from tapml_targets.webgpu.driver import open_device


def _devices() -> tuple[list[DeviceDescription], str]:
    try:
        ranked = ranking.rank_devices("webgpu")
    except TapmlError as error:
        return [], str(error)
    usable = [device.description for device in ranked if not device.problem]
    # By index: a ranking is timed, and processes that share the tests must collect the same ones.
    usable.sort(key=lambda device: device.index)
    return usable, "; ".join(device.problem for device in ranked if device.problem)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `webgpu_device` one parameter per adapter, or one that says why there is none."""
    if "webgpu_device" in metafunc.fixturenames:
        devices, reason = _devices()
        metafunc.parametrize(
            "webgpu_device",
            devices or [reason],
            ids=[device.vendor_platform.split()[0] for device in devices] or ["none"],
            indirect=True,
            scope="session",
        )


@pytest.fixture(scope="session")
def webgpu_device(request: pytest.FixtureRequest) -> DeviceDescription:
    """One adapter of this machine that passed its self-test."""
    if isinstance(request.param, DeviceDescription):
        return request.param
    reason = f"no usable WebGPU adapter here: {request.param}"
    if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
        pytest.fail(f"{reason}, and TAPML_REQUIRE_DEVICES=1 says there must be")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def driver(webgpu_device: DeviceDescription) -> Iterator[Driver]:
    """An open WebGPU device."""
    opened = open_device(webgpu_device)
    yield opened
    opened.close()
