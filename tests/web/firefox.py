"""Firefox without a window, spoken to over WebDriver BiDi."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tapml_targets.vulkan_loader.drivers import browser_environment
from tests.report.browser import go_without, need_browser, running_browser

_NAMES = ("firefox-esr", "firefox")
# Debian's first release of it with WebGPU on Linux.
_LEAST_VERSION = 153
_LIMIT_SECONDS = 60.0
_PREFERENCES = {
    # WebGPU is off by default on Linux, and a rasteriser is on Firefox's list of blocked drivers.
    "dom.webgpu.enabled": True,
    "gfx.webgpu.ignore-blocklist": True,
    # A test's browser goes nowhere by itself.
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.enabled": False,
}


class FirefoxPage:
    """One page, as `tests.report.browser.Page` is one in Chromium; keeps what it logged."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._next = 0
        self.complaints: list[str] = []
        self.version = str(
            self.send("session.new", capabilities={})["capabilities"]["browserVersion"]
        )
        self.send("session.subscribe", events=["log.entryAdded"])
        self._context = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._next += 1
        number, deadline = self._next, time.monotonic() + _LIMIT_SECONDS
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            heard: dict[str, Any] = json.loads(self._connection.recv(timeout=left))
            if heard.get("id") == number:
                assert heard["type"] == "success", heard
                answer: dict[str, Any] = heard["result"]
                return answer
            if heard.get("method") == "log.entryAdded":
                self.complaints.append(json.dumps(heard["params"]))

    def open(self, address: str) -> None:
        """Load an address and wait until it is there."""
        # The same address with another part behind its # would only move there.
        for url in ("about:blank", address):
            self.send("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression that gives a text, a number or nothing."""
        answer = self.send(
            "script.evaluate",
            expression=expression,
            target={"context": self._context},
            awaitPromise=True,
        )
        assert answer["type"] == "success", answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """A window of another size."""
        viewport = {"width": width, "height": height}
        self.send("browsingContext.setViewport", context=self._context, viewport=viewport)

    def picture(self) -> bytes:
        """What is seen, as PNG."""
        answer = self.send("browsingContext.captureScreenshot", context=self._context)
        return base64.b64decode(answer["data"])


@contextlib.contextmanager
def open_firefox(profile: Path) -> Iterator[FirefoxPage]:
    """A page in a Firefox of its own, with WebGPU.

    Where none is installed, or one that is too old, the test is skipped, and fails under
    ``TAPML_REQUIRE_DEVICES=1``.
    """
    found = need_browser(_NAMES)
    lines = [
        f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
        for name, value in _PREFERENCES.items()
    ]
    profile.joinpath("user.js").write_text("".join(lines))
    command = [
        found, "--headless", "--no-remote", "--profile", str(profile),
        "--remote-debugging-port", "0",
    ]  # fmt: skip
    # It leaves files in the home folder otherwise.
    environ = browser_environment(os.environ) | {"HOME": str(profile)}
    with (
        running_browser(command, "WebDriver BiDi listening on", environ) as (_, address),
        connect(f"{address}/session", max_size=None, open_timeout=_LIMIT_SECONDS) as connection,
    ):
        page = FirefoxPage(connection)
        if int(page.version.partition(".")[0]) < _LEAST_VERSION:
            go_without(
                f"{found} is Firefox {page.version}, which has no WebGPU on Linux: "
                f"{_LEAST_VERSION} has; sudo apt-get update && sudo apt-get install firefox-esr"
            )
        yield page
