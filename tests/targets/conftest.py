"""Every test that takes `driver` runs on every OpenCL device of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml_targets import ranking
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.errors import TapmlError
from tapml_targets.opencl.driver import open_device


def _devices() -> tuple[list[DeviceDescription], str]:
    try:
        ranked = ranking.rank_devices("opencl")
    except TapmlError as error:
        return [], str(error)
    # A checker runs the same kernels a thousand times slower.
    usable = [
        d.description for d in ranked if not d.problem and d.description.device_type != "checker"
    ]
    # By index: a ranking is timed, and processes that share the tests must collect the same ones.
    usable.sort(key=lambda device: device.index)
    return usable, "; ".join(d.problem for d in ranked if d.problem)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `opencl_device` one parameter per device, or one that says why there is none."""
    if "opencl_device" in metafunc.fixturenames:
        devices, reason = _devices()
        metafunc.parametrize(
            "opencl_device",
            devices or [reason],
            ids=[d.vendor_platform.replace(" ", "-") for d in devices] or ["none"],
            indirect=True,
            scope="session",
        )


@pytest.fixture(scope="session")
def opencl_device(request: pytest.FixtureRequest) -> DeviceDescription:
    """One OpenCL device of this machine that passed its self-test."""
    if isinstance(request.param, DeviceDescription):
        return request.param
    reason = f"no usable OpenCL device here: {request.param}"
    if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
        pytest.fail(f"{reason}, and TAPML_REQUIRE_DEVICES=1 says there must be")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def driver(opencl_device: DeviceDescription) -> Iterator[Driver]:
    """An open OpenCL device."""
    opened = open_device(opencl_device)
    yield opened
    opened.close()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for this test alone."""
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
