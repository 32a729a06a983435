"""A tracker process and a browser whose page is its device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.report.browser import Page, open_browser
from tests.rpc.tracker.trackers import PATIENCE_SECONDS, TrackerProcess

WEBGPU_FLAGS = (
    "--enable-unsafe-webgpu",
    "--enable-webgpu-developer-features",
    "--use-webgpu-adapter=swiftshader",
)
NAME = "page"


class DevicePage:
    """The tracker's page in a browser.

    Parameters
    ----------
    page
        The browser's page.
    tracker
        Whose page it is.
    websocket
        Where the browser reaches it; where it listens if None.
    """

    def __init__(self, page: Page, tracker: TrackerProcess, websocket: str | None = None) -> None:
        self.page = page
        self.tracker = tracker
        self.address = (websocket or tracker.websocket).replace("ws", "http", 1)

    def open(self, settings: str = f"name={NAME}") -> None:
        """Load the page; `settings` stand behind the ``#`` of its address."""
        self.page.open(f"{self.address}/#{settings}")

    def text(self, selector: str) -> str:
        """What an element shows."""
        return str(self.page.evaluate(f"document.querySelector({selector!r}).innerText"))

    def wait(self, selector: str, text: str) -> None:
        """Wait until an element shows a text."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in (shown := self.text(selector)):
            assert time.monotonic() < deadline, (
                f"{selector} shows {shown!r}, not {text!r}; the page's log:\n{self.text('#log')}\n"
                f"{self.page.complaints}"
            )
            time.sleep(0.02)

    def wait_ready(self) -> None:
        """Wait until the tracker has the device."""
        self.wait("#state", "ready")

    def click(self, selector: str) -> None:
        """Press a button."""
        self.page.evaluate(f"document.querySelector({selector!r}).click()")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.page.evaluate(script)


@contextmanager
def device_page(
    profile: Path, tracker: TrackerProcess, websocket: str | None = None
) -> Iterator[DevicePage]:
    """A browser with the tracker's page, ready to be lent."""
    with open_browser(profile, *WEBGPU_FLAGS) as page:
        shown = DevicePage(page, tracker, websocket)
        page.resize(1200, 900)
        shown.open()
        shown.wait_ready()
        yield shown
