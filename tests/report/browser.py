"""Chromium without a window, driven by Playwright; its processes are the test's own to signal."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.report.driver_way import way_to

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Playwright
    from playwright.sync_api import Page as Tab

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_SECONDS = 60.0


class Page:
    """One page; keeps what it logged and what it asked the network for.

    `tab` is Playwright's own page, for what a test does as a person would.
    """

    def __init__(self, browser: Browser, process: subprocess.Popen[str]) -> None:
        self._browser = browser
        self._process = process
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab = self._new_tab()

    @property
    def _context(self) -> BrowserContext:
        return self._browser.contexts[0]

    def _new_tab(self) -> Tab:
        tab = self._context.new_page()
        tab.set_default_timeout(_LIMIT_SECONDS * 1000)
        tab.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("dialog", self._complain_of)
        tab.on("request", lambda request: self.requests.append(request.url))
        self._crashed = False
        tab.on("crash", self._note_crash)
        self._protocol = self._context.new_cdp_session(tab)
        return tab

    def _complain_of(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note_crash(self, tab: Tab) -> None:
        self._crashed = self._crashed or tab == self.tab

    def close_tab(self) -> None:
        """Close the page's tab; the page goes on in another one, which shows nothing yet."""
        closed, self.tab = self.tab, self._new_tab()
        closed.close()

    def crash_tab(self) -> None:
        """End the process that draws the page."""
        from playwright.sync_api import Error

        # A navigation that ends in a crash is an error to Playwright.
        with self.tab.expect_event("crash"), contextlib.suppress(Error):
            self.tab.goto("chrome://crash")

    def crash_gpu(self) -> None:
        """End the process that speaks to the GPU, for which Playwright has no word."""
        self._browser.new_browser_cdp_session().send("Browser.crashGpuProcess")

    def signal_browser(self, number: int) -> None:
        """Send a signal to all processes of the browser: SIGSTOP is a machine that falls asleep."""
        os.killpg(self._process.pid, number)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of Chromium's debugging protocol, and its answer: for what Playwright lacks."""
        with self._in_time():
            answer: dict[str, Any] = self._protocol.send(method, parameters)
        return answer

    def open(self, place: Path | str, part: str = "") -> None:
        """Load a file or an address and wait until it is there; `part` is where in it, with #."""
        if self._crashed:
            self.close_tab()
        # The same address with another part would only move there.
        self.tab.goto("about:blank")
        self.requests.clear()
        self.tab.goto((place if isinstance(place, str) else place.as_uri()) + part)

    def follow(self, selector: str) -> None:
        """Press what leads to another page, seen or not, and wait until that is there."""
        with self.tab.expect_navigation():
            self.tab.dispatch_event(selector, "click")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or what its promise comes to."""
        with self._in_time():
            return self.tab.evaluate(expression)

    def wait_shown(self, text: str, selector: str = "body") -> None:
        """Wait until an element shows a text."""
        from playwright.sync_api import expect

        expect(self.tab.locator(selector)).to_contain_text(text, use_inner_text=True)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """A window of another size, which is a phone's where it is narrow, and of another theme."""
        # To Playwright what is a phone stays one, and what is none never becomes one.
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 700,
        )  # fmt: skip
        self.tab.emulate_media(color_scheme="dark" if dark else "light")

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        self.tab.keyboard.press(key)

    def accessibility(self) -> list[tuple[str, str]]:
        """Role and name of all that a browser tells to assistive technology.

        Its own tree: `aria_snapshot` of Playwright's is what Playwright makes of the document.
        """
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(node["role"]["value"]), str(node.get("name", {}).get("value", "")))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def picture(self) -> bytes:
        """What is seen, as PNG."""
        return self.tab.screenshot()

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        """For a call that Playwright sets no limit to: the browser is ended, and it fails."""
        too_late = threading.Timer(_LIMIT_SECONDS, _kill, (self._process,))
        too_late.start()
        try:
            yield
        finally:
            too_late.cancel()


def need_browser(names: Sequence[str] = _NAMES) -> str:
    """The browser's program; without one the test is skipped, or fails where there must be one."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        go_without(f"no browser here: looked for {', '.join(names)}")
    return found


def go_without(reason: str) -> NoReturn:
    """Skip the test for what is not here, or fail it where that must be."""
    if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
        pytest.fail(f"{reason}; TAPML_REQUIRE_DEVICES=1 says there must be one")
    pytest.skip(reason)


class _Driver:
    """Playwright's driver: one for all browsers that a process has open at a time.

    It lives no longer than they do. While it runs an event loop runs in this thread, where no other
    can then, and no second driver.
    """

    def __init__(self) -> None:
        self._running: Playwright | None = None
        self._users = 0

    @contextlib.contextmanager
    def used(self) -> Iterator[Playwright]:
        """The driver, started for the first who uses it and stopped behind the last."""
        try:
            from playwright.sync_api import expect, sync_playwright
        except ImportError:
            go_without("no Playwright here: pip install 'tapml[test]'")
        expect.set_options(timeout=_LIMIT_SECONDS * 1000)
        running = self._running = self._running or sync_playwright().start()
        self._users += 1
        try:
            yield running
        finally:
            self._users -= 1
            if not self._users:
                self._running = None
                running.stop()


_driver = _Driver()


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
        # On a new tab's own page, while that loads, a debugger sometimes waits for ever.
        f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    with _driver.used() as playwright, contextlib.ExitStack() as stack:
        browser, process = _started(playwright, command, stack)
        yield Page(browser, process)


def _started(
    playwright: Playwright, command: Sequence[str], stack: contextlib.ExitStack
) -> tuple[Browser, subprocess.Popen[str]]:
    """A browser with its debugger, tried once more where the two do not come together."""
    from playwright.sync_api import TimeoutError as TooLateError

    for seconds in (_LIMIT_SECONDS / 2, _LIMIT_SECONDS):
        with contextlib.ExitStack() as attempt:
            process, address = attempt.enter_context(
                running_browser(command, "DevTools listening on")
            )
            way = attempt.enter_context(way_to(address))
            with contextlib.suppress(TooLateError):
                browser = playwright.chromium.connect_over_cdp(way, timeout=seconds * 1000)
                stack.push(attempt.pop_all())
                return browser, process
    pytest.fail(f"{command[0]} takes no debugger, twice")


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
