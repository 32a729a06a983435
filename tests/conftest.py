"""What every test stands on: seeded generators, strict floating point, real devices or a reason."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pytest

SEED = 20240229
LIST_DEVICES = """
import dataclasses, json, sys
from tapml_targets.platforms import load_driver_module
devices = load_driver_module(sys.argv[1]).list_devices()
print(json.dumps([dataclasses.asdict(device) for device in devices], default=str))
"""


class RequireDevice(Protocol):
    """The type of the fixture `require_device`."""

    def __call__(self, kind: str, *, vendor: str = "") -> list[dict[str, Any]]:
        """Return the devices of a platform whose vendor platform contains `vendor`."""


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

    ``require_device("opencl")`` returns the descriptions of the machine's OpenCL devices, as
    dictionaries; ``require_device("opencl", vendor="Intel")`` those of one implementation.
    """

    def require(kind: str, *, vendor: str = "") -> list[dict[str, Any]]:
        devices, fault = list_devices(kind)
        found = [d for d in devices if vendor.lower() in d["vendor_platform"].lower()]
        if not found:
            reason = f"no {kind} device" + (f" of {vendor}" if vendor else "") + " here" + fault
            if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
                pytest.fail(f"{reason}, and TAPML_REQUIRE_DEVICES=1 says there must be")
            pytest.skip(reason)
        return found

    return require


@functools.cache
def list_devices(kind: str) -> tuple[list[dict[str, Any]], str]:
    """List a platform's devices in a process of its own: drivers stay out of the tests' process."""
    listing = subprocess.run(
        [sys.executable, "-c", LIST_DEVICES, kind],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if listing.returncode != 0:
        return [], ": " + (listing.stderr.strip().splitlines() or ["no message"])[-1]
    return json.loads(listing.stdout), ""
