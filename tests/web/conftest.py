"""A tracker and a browser for the tests of a module, and a session with the browser's GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml_rpc.reach import open_device
from tapml_rpc.session import Session
from tests.offload.sessions import FinishedSession
from tests.rpc.tracker.trackers import TrackerProcess
from tests.web.pages import NAME, DevicePage, device_page


@pytest.fixture(scope="session")
def webgpu_cache(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tiny model's session has compiled, and what is compiled for WebGPU beside it."""
    return finished.copy_cache(tmp_path_factory.mktemp("webgpu") / "cache")


@pytest.fixture(scope="module")
def tracker() -> Iterator[TrackerProcess]:
    """A tracker that serves the page."""
    with TrackerProcess("tcp://127.0.0.1:0", "--websocket", "ws://127.0.0.1:0") as process:
        yield process


@pytest.fixture(scope="module")
def shown(
    tracker: TrackerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DevicePage]:
    """The page in a browser, registered."""
    with device_page(tmp_path_factory.mktemp("browser"), tracker) as page:
        yield page


@pytest.fixture
def session(shown: DevicePage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session with the browser, over the tracker."""
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    with open_device(f"tracker:{NAME}") as opened:
        yield opened
