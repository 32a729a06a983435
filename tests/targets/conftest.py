"""Tests that take `device` or `driver` run on every working device of the platforms they are for.

Those are the platforms that a mark `platforms` names; in a folder that is named like a platform,
that one; and else every platform there is.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from tapml_targets.cache_folder import cache_folder
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.errors import TapmlError
from tapml_targets.platforms import load_driver_module, platform_names
from tapml_targets.ranking import rank_devices
from tests.conftest import RequireDevice

# Kernels by the hundred: `exhaustive` has them on the slowest driver beside another one as well.
KERNELS = ("conformance", "test_codegen.py")
SLOWEST = "SwiftShader"


@contextmanager
def _alone() -> Iterator[None]:
    """One process tries the devices and the others read what it found.

    They collect the same tests then, and no device is slow because all try it at the same moment.
    Where the cache cannot be written each tries them for itself.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            lock = stack.enter_context((cache_folder("devices") / "tests.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def _devices(platform: str) -> list[DeviceDescription]:
    try:
        with _alone():
            ranked = rank_devices(platform)
    except TapmlError:
        # `require_device` says why when the test is to run.
        return []
    # A checker runs the same kernels a thousand times slower.
    usable = [
        d.description for d in ranked if not d.problem and d.description.device_type != "checker"
    ]
    # One simulated device of a platform: more of them differ in no part of the driver.
    simulated = [each for each in usable if each.device_type == "simulated"]
    usable = [each for each in usable if each not in simulated[1:]]
    # By index: a ranking is timed, and processes that share the tests must collect the same ones.
    return sorted(usable, key=lambda device: device.index)


def _platforms(metafunc: pytest.Metafunc) -> tuple[str, ...]:
    mark = metafunc.definition.get_closest_marker("platforms")
    folder = metafunc.definition.path.parent.name
    if mark is not None:
        # A test of the common suite may run again in a platform's folder.
        return (folder,) if folder in mark.args else mark.args
    return (folder,) if folder in platform_names() else platform_names()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `device` one parameter per device, or per platform that has none here."""
    if "device" not in metafunc.fixturenames:
        return
    places: list[tuple[str, int | None]] = []
    names = []
    for platform in _platforms(metafunc):
        found = _devices(platform)
        if metafunc.definition.path.parts[-2:] == KERNELS:
            found = [each for each in found if SLOWEST not in each.vendor_platform] or found
        places += [(platform, each.index) for each in found] or [(platform, None)]
        names += [f"{platform}-{each.vendor_platform.split()[0]}" for each in found] or [
            f"{platform}-none"
        ]
    metafunc.parametrize("device", places, ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest, require_device: RequireDevice) -> DeviceDescription:
    """One device of this machine that passed its self-test."""
    platform, index = request.param
    found = {each.index: each for each in require_device(platform)}
    if index not in found:
        pytest.fail(f"{platform}:{index} was there when tests were collected, and is not now")
    return found[index]


@pytest.fixture(scope="session")
def driver(device: DeviceDescription) -> Iterator[Driver]:
    """An open device, which runs machine code where its kernels are that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPML_ALLOW_SHARED_LIBRARIES", "1")
        opened: Driver = load_driver_module(device.platform).open_device(device)
    yield opened
    opened.close()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for this test alone."""
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
