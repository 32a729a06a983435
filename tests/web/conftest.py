"""A tracker and a browser for the tests of a module, and a session with the browser's GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tapml.cli.main import main
from tapml.devices.reach import open_device
from tapml.package import browser_folder
from tapml.package.make import make_package
from tapml_rpc.session import Session
from tests.conftest import RequireDevice
from tests.offload.commands import run_process
from tests.offload.sessions import FinishedSession, offload_arguments
from tests.package.packages import add_tokenizer
from tests.rpc.tracker.trackers import TrackerProcess, kept_addresses
from tests.shared_artifact import shared_artifact
from tests.web.doorway import Doorway
from tests.web.pages import NAME, DevicePage, device_page
from tests.web.runner_page import PART_BYTES


@pytest.fixture(scope="session")
def webgpu_cache(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tiny model's session has compiled, and what is compiled for WebGPU beside it."""
    return finished.copy_cache(tmp_path_factory.mktemp("webgpu") / "cache")


@pytest.fixture(scope="session")
def moved_to_driver(
    finished: FinishedSession, webgpu_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """The tiny model's session with a WebGPU adapter of this machine; tests only read it."""

    def moved(index: int) -> Path:
        def run(session: Path) -> None:
            ended = run_process(
                *offload_arguments(finished.model, session, f"webgpu:{index}"),
                *("--target", "webgpu", "--strategy", "bisect"),
                cache=webgpu_cache,
            )
            assert ended.exit_code == 0, ended.errors

        return shared_artifact(f"moved-to-webgpu-{index}", tmp_path_factory, run)

    return moved


@pytest.fixture(scope="session")
def moved_to_webgpu(moved_to_driver: Callable[[int], Path], require_device: RequireDevice) -> Path:
    """The tiny model's session with the adapter that a browser has as well, if it is here."""
    devices = require_device("webgpu")
    # Its limits are the same.
    named = next((each for each in devices if "SwiftShader" in each.name), devices[0])
    return moved_to_driver(named.index)


@pytest.fixture(scope="session")
def webgpu_package(moved_to_webgpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, moved to WebGPU by the real command, with a tokenizer of its own."""

    def make(folder: Path) -> None:
        folder.mkdir()
        add_tokenizer(make_package(moved_to_webgpu, folder / "package").path)

    return shared_artifact("webgpu-package", tmp_path_factory, make) / "package"


@pytest.fixture(scope="session")
def browser_model(webgpu_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``tapml package --browser`` makes of the tiny model; tests copy it, never write it."""

    def make(folder: Path) -> None:
        folder.mkdir()
        command = ["package", str(webgpu_package), "--browser", "--out", str(folder / "good")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(browser_folder, "PART_BYTES", PART_BYTES)
            assert main(command) == 0

    return shared_artifact("browser-model", tmp_path_factory, make) / "good"


@pytest.fixture(scope="module")
def tracker(request: pytest.FixtureRequest) -> Iterator[TrackerProcess]:
    """A tracker that serves the page, with the `TRACKER_OPTIONS` of a module that has some."""
    options = getattr(request.module, "TRACKER_OPTIONS", ())
    with TrackerProcess(*kept_addresses(), *options) as process:
        yield process


@pytest.fixture(scope="module")
def doorway(tracker: TrackerProcess) -> Iterator[Doorway]:
    """What the page comes through, so that a test can cut the way."""
    with Doorway(tracker.websocket) as doorway:
        yield doorway


@pytest.fixture(scope="module")
def shown(
    tracker: TrackerProcess, doorway: Doorway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DevicePage]:
    """The page in a browser, registered through the doorway."""
    profile = tmp_path_factory.mktemp("browser")
    with device_page(profile, tracker, doorway.address) as page:
        yield page


@pytest.fixture
def session(shown: DevicePage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session with the browser, over the tracker."""
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    with open_device(f"tracker:{NAME}") as opened:
        yield opened
