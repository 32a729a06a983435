"""Chromium without a window, spoken to over its own debugging protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_SECONDS = 60.0


class Page:
    """One page; keeps what it logged and what it asked the network for."""

    def __init__(self, connection: ClientConnection, process: subprocess.Popen[str]) -> None:
        self._connection = connection
        self._process = process
        self._next = 0
        self._session: str | None = None
        self._loads = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._new_tab()

    def _new_tab(self) -> None:
        self._session = None
        self._target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close_tab(self) -> None:
        """Close the page's tab; the page goes on in another one, which shows nothing yet."""
        closed = self._target
        self._new_tab()
        self.send("Target.closeTarget", targetId=closed)

    def signal_browser(self, number: int) -> None:
        """Send a signal to all processes of the browser: SIGSTOP is a machine that falls asleep."""
        os.killpg(self._process.pid, number)

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
        self._navigate("about:blank")
        self.requests.clear()
        self._navigate((place if isinstance(place, str) else place.as_uri()) + part)

    def _navigate(self, url: str) -> None:
        """Go to an address; its load event may come before the answer to the command."""
        before = self._loads
        answer = self.send("Page.navigate", url=url)
        self._wait_for_load(before, f"{url} was not loaded: {answer}")

    def follow(self, selector: str) -> None:
        """Press what leads to another page and wait until that is there."""
        before = self._loads
        self.evaluate(f"document.querySelector({selector!r}).click()")
        self._wait_for_load(before, f"{selector} leads nowhere")

    def _wait_for_load(self, before: int, otherwise: str) -> None:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while self._loads == before:
            # A page that is open goes on to tell of other things, so silence ends nothing here.
            assert time.monotonic() < deadline, otherwise
            self._hear()

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

    def press(self, key: str) -> None:
        """Press a key and let it go: Tab or Enter."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text,
            )  # fmt: skip

    def accessibility(self) -> list[tuple[str, str]]:
        """Role and name of all that a browser tells to assistive technology."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(node["role"]["value"]), str(node.get("name", {}).get("value", "")))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def picture(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def _hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self._connection.recv(timeout=_LIMIT_SECONDS))
        method, parameters = heard.get("method"), heard.get("params", {})
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.requestWillBeSent":
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


def need_browser(names: Sequence[str] = _NAMES) -> str:
    """The browser's program; without one the test is skipped, or fails where there must be one."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        reason = f"no browser here: looked for {', '.join(names)}"
        if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
            pytest.fail(f"{reason}; TAPML_REQUIRE_DEVICES=1 says there must be one")
        pytest.skip(reason)
    return found


@contextlib.contextmanager
def open_browser(profile: Path, *flags: str) -> Iterator[Page]:
    """A page in a browser of its own, started with `flags` instead of without a GPU.

    Where no browser is installed the test is skipped, and fails under ``TAPML_REQUIRE_DEVICES=1``.
    """
    found = need_browser()
    command = [
        found, "--headless=new", "--no-sandbox", *(flags or ("--disable-gpu",)),
        "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
    ]  # fmt: skip
    with (
        running_browser(command, "DevTools listening on") as (process, address),
        connect(address, max_size=None, open_timeout=_LIMIT_SECONDS) as connection,
    ):
        yield Page(connection, process)


@contextlib.contextmanager
def running_browser(
    command: Sequence[str], says: str, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A browser's process, and the address it names in the line with `says`; it is killed after."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environ,
    )
    told: list[str] = []
    too_late = threading.Timer(_LIMIT_SECONDS, _kill, (process,))
    too_late.start()
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        for line in lines:
            told.append(line)
            if says in line:
                break
        else:
            pytest.fail(f"{command[0]} does not name its address: it said\n{''.join(told[-40:])}")
        too_late.cancel()
        # What it goes on to say must not fill the pipe, or it waits for a reader.
        threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
        yield process, told[-1].split()[-1]
    finally:
        too_late.cancel()
        _kill(process)
        process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    """End a browser and the processes it has started: one of them may hang on its GPU."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
