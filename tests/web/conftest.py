"""A tracker and a browser for the tests of a module, and a session with the browser's GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tapml_rpc.reach import open_device
from tapml_rpc.session import Session
from tests.made_once import made_once
from tests.offload.commands import run_process
from tests.offload.sessions import FinishedSession, offload_arguments
from tests.rpc.tracker.trackers import TrackerProcess
from tests.web.pages import NAME, DevicePage, device_page


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
        with made_once(f"moved-to-webgpu-{index}", tmp_path_factory) as session:
            if not session.exists():
                ended = run_process(
                    *offload_arguments(finished.model, session, f"webgpu:{index}"),
                    *("--target", "webgpu", "--strategy", "bisect"),
                    cache=webgpu_cache,
                )
                assert ended.exit_code == 0, ended.errors
        return session

    return moved


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
