"""What every test stands on: seeded generators, strict floating point, real devices or a reason."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

# The models of the tests are tiny: on a busy machine two threads that wait for each other took 14
# times as long as one. Before NumPy and PyTorch start theirs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import TapmlError
from tapml_targets.ranking import rank_devices

# The collector walks over PyTorch, TVM and thousands of tests again and again: a third of the time
# that importing them takes. Before the plugins below, which import them.
gc.set_threshold(100_000, 50, 100)

# A finished session and an environment are made once for all tests that look at one.
pytest_plugins = [
    "tests.offload.sessions",
    "tests.check.checkers",
    "tests.base_environment",
    "tests.small_llama",
    "tests.cpu_budgets",
    "tests.first_imports",
    "pytester",
]

SEED = 20240229

# Every run draws other examples, but with CI=true: what one run leaves out another one has.
settings.register_profile("tapml", max_examples=50)
settings.load_profile("tapml")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be heard, and give each process that shares the tests a cache of PoCL's own.

    A shell's background job ignores SIGINT, and so would every command that a test interrupts. The
    processes build the same kernels at the same moment: one run saw a PoCL 3.1 abort there, and a
    cache that two processes fill is what they shared.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and "POCL_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"pocl-{worker}"
        os.environ["POCL_CACHE_DIR"] = str(cache)


def pytest_collection_finish() -> None:
    """What was imported lives as long as the process: the collector need not look at it."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _collected_before() -> None:
    """What earlier files left is collected once: a test that collects need not look at it again.

    A walk over all that a process of a whole run has imported takes a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _settings_as_found() -> Iterator[None]:
    """Fail a test that leaves behind in its process what breaks later tests."""
    before = _settings()
    yield
    assert _settings() == before, "this test leaves another environment than it found"
    assert "tensorflow" not in sys.modules, "PoCL's compiler crashes in a process with TensorFlow"


def _settings() -> dict[str, str]:
    # OpenCL's loader reads its folder once per process, so the first search sets it for good.
    mine = (
        name for name in os.environ if name.startswith("TAPML_") and name != "TAPML_ICD_VENDORS"
    )
    return {name: os.environ[name] for name in mine}


class RequireDevice(Protocol):
    """The type of the fixture `require_device`."""

    def __call__(
        self, kind: str, *, vendor: str = "", dtype: str = "float32"
    ) -> list[DeviceDescription]:
        """Return the devices of a platform that pass their self-test in `dtype`, best first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: processes that share the tests then end together.

    Before them the one that makes what several need: else all processes wait for it at once.
    """

    def place(item: pytest.Item) -> int:
        early = item.get_closest_marker("run_first")
        return 2 if early is None else 0 if early.kwargs.get("first") else 1

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files that share what is slow to make go to one process."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import SharedScheduling

    return SharedScheduling(config, log)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - for libraries that draw from the global generator


@pytest.fixture(autouse=True)
def _strict_floating_point() -> Iterator[None]:
    """An overflow, a division by zero or a NaN nobody meant fails the test that made it."""
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        yield


@pytest.fixture(scope="session")
def require_device() -> RequireDevice:
    """Skip the test where a device is absent; fail it instead under ``TAPML_REQUIRE_DEVICES=1``.

    ``require_device("opencl")`` returns the machine's working OpenCL devices, checkers apart;
    ``require_device("opencl", vendor="Intel", dtype="float16")`` those whose platform's name holds
    "Intel" and that compute in half precision. They are tried in processes of their own, so that
    no driver is loaded into the tests' process.
    """

    def require(kind: str, *, vendor: str = "", dtype: str = "float32") -> list[DeviceDescription]:
        problem = ""
        found: list[DeviceDescription] = []
        try:
            for device in rank_devices(kind, dtype):
                if vendor.lower() not in device.description.vendor_platform.lower():
                    continue
                problem = problem or device.problem
                if not device.problem and device.description.device_type != "checker":
                    found.append(device.description)
        except TapmlError as error:
            problem = str(error)
        if not found:
            wanted = " ".join(filter(None, [vendor, kind]))
            reason = f"no {wanted} device for {dtype} here" + (f": {problem}" if problem else "")
            if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
                pytest.fail(f"{reason}; TAPML_REQUIRE_DEVICES=1 says there must be one")
            pytest.skip(reason)
        return found

    return require
