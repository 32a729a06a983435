"""Chromium without a window, spoken to over its own debugging protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_SECONDS = 30.0


class Page:
    """One page; keeps what it logged and what it asked the network for."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._next = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._next += 1
        number = self._next
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            heard = self._hear()
            if heard.get("id") == number:
                assert "error" not in heard, heard
                answer: dict[str, Any] = heard["result"]
                return answer

    def tell(self, method: str, *, browser: bool = False) -> None:
        """A command whose answer is not waited for, to the page or the whole browser."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method}
        if not browser:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))

    def open(self, place: Path | str, part: str = "") -> None:
        """Load a file or an address and wait until it is there; `part` is where in it, with #."""
        # The same address with another part would only move there.
        self.send("Page.navigate", url="about:blank")
        while self._hear().get("method") != "Page.loadEventFired":
            pass
        self.requests.clear()
        self.send("Page.navigate", url=(place if isinstance(place, str) else place.as_uri()) + part)
        while self._hear().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """A window of another size, and of another theme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 700,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def _hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self._connection.recv(timeout=_LIMIT_SECONDS))
        method, parameters = heard.get("method"), heard.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(str(parameters["request"]["url"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(json.dumps(parameters["entry"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {parameters['message']}")
        return heard


@contextlib.contextmanager
def open_browser(profile: Path, *flags: str) -> Iterator[Page]:
    """A page in a browser of its own, started with `flags` instead of without a GPU.

    Where no browser is installed the test is skipped, and fails under ``TAPML_REQUIRE_DEVICES=1``.
    """
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        reason = f"no browser here: looked for {', '.join(_NAMES)}"
        if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
            pytest.fail(f"{reason}; TAPML_REQUIRE_DEVICES=1 says there must be one")
        pytest.skip(reason)
    process = subprocess.Popen(
        [
            found, "--headless=new", "--no-sandbox", *(flags or ("--disable-gpu",)),
            "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        address = next(line.split()[-1] for line in lines if "DevTools listening on" in line)
        # What it goes on to say must not fill the pipe, or it waits for a reader.
        threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
        with connect(address, max_size=None) as connection:
            yield Page(connection)
    finally:
        process.kill()
        process.communicate()
