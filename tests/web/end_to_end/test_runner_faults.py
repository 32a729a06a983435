"""A folder's page whose GPU goes away, or was never there, says so by name and what to do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml.package.browser_folder import write_browser_folder
from tapml.package.load import load_package
from tests.report.browser import open_browser
from tests.rpc.tracker.trackers import PATIENCE_SECONDS
from tests.web.half_model import half_model
from tests.web.pages import WEBGPU_FLAGS
from tests.web.runner_page import RunnerPage, sabotage, served

PROMPT = "So it goes"
NEW_TOKENS = 4
# A folder's worker destroys its device when anybody says so on this channel.
DESTROYED = """\
const requestDevice = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...wanted) {
  const device = await requestDevice.apply(this, wanted);
  new BroadcastChannel("destroy").onmessage = () => { device.destroy(); };
  return device;
};
"""
NO_WEBGPU = 'Object.defineProperty(WorkerNavigator.prototype, "gpu", { get: () => undefined });\n'
NO_ADAPTER = "GPU.prototype.requestAdapter = () => Promise.resolve(null);\n"
SABOTAGES = {"destroyed": DESTROYED, "no-webgpu": NO_WEBGPU, "no-adapter": NO_ADAPTER}


@pytest.fixture(scope="module")
def root(browser_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is served: the folder ``good``, one for each sabotage, and one in half precision."""
    served_root = tmp_path_factory.mktemp("served")
    shutil.copytree(browser_model, served_root / "good")
    for name, script in SABOTAGES.items():
        shutil.copytree(browser_model, served_root / name)
        sabotage(served_root / name, script)
    write_browser_folder(half_model(), served_root / "half")
    return served_root


@pytest.fixture(scope="module")
def runner(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerPage]:
    """Chromium for the pages of the folders."""
    with (
        served(root) as port,
        open_browser(tmp_path_factory.mktemp("browser"), *WEBGPU_FLAGS) as page,
    ):
        yield RunnerPage(page, port)


@pytest.fixture(scope="module")
def text(webgpu_package: Path) -> str:
    """What the model writes on this machine's driver."""
    with load_package(webgpu_package) as model:
        return model.generate(PROMPT, max_new_tokens=NEW_TOKENS)


def begun(runner: RunnerPage) -> None:
    """Begin a text, and wait for its first token."""
    runner.begin(PROMPT, 1000)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while runner.text("#written") == "":
        assert time.monotonic() < deadline, runner.text("body")
        time.sleep(0.01)


def assert_lost_and_loaded_again(runner: RunnerPage, text: str) -> None:
    """The page names the loss and offers to load the model again, which then writes its text."""
    assert runner.wait_state("failed") == "failed"
    assert runner.problem.startswith("DeviceLostError: the GPU device was lost (")
    assert runner.problem.endswith("what it held is gone: load the model again")
    assert runner.page.evaluate("document.querySelector('#generate').disabled")
    assert runner.page.evaluate("document.querySelector('#prompt').value") == PROMPT
    runner.page.evaluate("document.querySelector('#again').click(); 0")
    assert runner.wait_state("ready", "failed") == "ready", runner.problem
    assert runner.problem == ""
    assert runner.generate(PROMPT, NEW_TOKENS) == text


def test_a_device_that_is_destroyed_amid_a_text_is_named_and_loading_again_goes_on(
    runner: RunnerPage, text: str
) -> None:
    runner.show("destroyed")
    begun(runner)
    runner.page.evaluate("new BroadcastChannel('destroy').postMessage(0)")
    assert_lost_and_loaded_again(runner, text)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("no-webgpu", "SetupError: this browser has no WebGPU; use a current Chrome"),
        ("no-adapter", "SetupError: the browser has WebGPU but no adapter for it"),
    ],
)
def test_a_browser_without_webgpu_or_an_adapter_names_where_to_look(
    folder: str, said: str, runner: RunnerPage
) -> None:
    assert runner.open(folder) == "failed"
    assert runner.problem.startswith(said)
    assert "chrome://gpu" in runner.problem


def test_half_precision_is_refused_by_name_where_the_adapter_has_none(runner: RunnerPage) -> None:
    if runner.open("half") == "ready":
        pytest.skip("this browser's adapter has half precision")
    assert "LimitExceededError: " in runner.problem
    assert "kernel 'step' of operator 'step'" in runner.problem
    assert "needs the feature float16, which is missing" in runner.problem
    assert "--dtype float32" in runner.problem
