"""Starts a browser of this machine as a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

BROWSERS: Final = ("chromium", "firefox")
_START_SECONDS: Final = 120.0


@contextmanager
def started_browser(which: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A tracker with a browser; both end with the block, and with this process.

    Parameters
    ----------
    which
        ``chromium``, ``firefox`` or a program, as ``tapml rpc tracker --browser`` takes it.

    Yields
    ------
    tuple
        The argument of ``--device``, and the environment that names the tracker.

    Raises
    ------
    SetupError
        If there is no such browser, or its page does not register.
    """
    from tapml_targets.errors import SetupError

    command = [
        sys.executable, "-P", "-m", "tapml.cli.main", "rpc", "tracker",
        "--bind", "tcp://127.0.0.1:0", "--browser", which, "--parent", str(os.getpid()),
    ]  # fmt: skip
    # A separate process group: Ctrl-C is for the work, which then releases the device.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as tracker:
        try:
            assert tracker.stdout is not None
            line = tracker.stdout.readline()
            if not line:
                raise SetupError(f"no tracker with the browser {which!r}; its message is above")
            told = json.loads(line)
            name = told["browsers"][0]
            wait_for_device(told["address"], name)
            yield f"tracker:{name}", {"TAPML_TRACKER": told["address"]}
        finally:
            tracker.terminate()
            tracker.wait()


def wait_for_device(tracker: str, name: str) -> None:
    """Wait until a device is registered.

    Raises
    ------
    SetupError
        If it is not within two minutes.
    """
    from tapml.devices.listing import list_devices
    from tapml_targets.errors import SetupError

    deadline = time.monotonic() + _START_SECONDS
    while not any(device.name == name for device in list_devices(tracker)):
        if time.monotonic() > deadline:
            raise SetupError(f"the page of {name!r} did not register within {_START_SECONDS:g} s")
        time.sleep(0.1)
