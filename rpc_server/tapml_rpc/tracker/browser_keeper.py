"""Keeps a browser of the tracker registered: one that dies or hangs is replaced.

Only the tracker's list shows whether a page works. A crashed tab, a GPU that a kernel holds for
ever, a stopped browser: each ends in a device that is not registered, and none can be repaired from
inside the browser.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final

from tapml_rpc.tracker.browser_process import Browser, BrowserProcess
from tapml_targets.errors import TapmlError

START_SECONDS: Final = 60
"""Seconds in which a browser's page must register for the first time."""

_MOST_FAILURES: Final = 3


def _say(line: str) -> None:
    print(f"tapml: {line}", file=sys.stderr, flush=True)


class BrowserKeeper:
    """One browser, started at once; call :meth:`tick` once a second.

    `url` is the tracker's page, with its parameters behind the ``#``; it registers as `name`. A
    registered page may be away for `patience_seconds`, because it reloads or reopens its GPU. `say`
    prints a line.
    """

    def __init__(
        self,
        url: str,
        name: str,
        browser: Browser,
        patience_seconds: float,
        say: Callable[[str], None] = _say,
    ) -> None:
        self.name = name
        self._url = url
        self._browser = browser
        self._patience = patience_seconds
        self._say = say
        self._failures = self._away = 0
        self._seen = self._over = False
        self._endings: list[threading.Thread] = []
        self.process: BrowserProcess | None = None
        self._start()

    def tick(self, *, registered: bool) -> None:
        """Check the browser; `registered` says whether the tracker has its device now."""
        process = self.process
        if process is None:
            # The reason it could not be started, such as a full disk, may pass.
            self._away += 1
            if not self._over and self._away >= START_SECONDS:
                self._start()
            return
        # Ticks are counted, not seconds: a machine that slept must not count as an absence.
        self._away = 0 if registered else self._away + 1
        if registered:
            self._seen, self._failures = True, 0
        elif not process.alive:
            self._again(f"ended by itself ({process.process.returncode})")
        elif self._seen and self._away >= self._patience:
            self._again(
                f"has not been a device for {self._patience:g} s: its page crashed, or a kernel "
                "holds its GPU"
            )
        elif self._away >= START_SECONDS:
            self._again(f"did not register within {START_SECONDS} s")

    def close(self) -> None:
        """End the browser for good, without waiting."""
        self._over = True
        self._end()

    def wait(self) -> None:
        """Wait until the ended browsers are gone, as long as one may take."""
        for ending in self._endings:
            ending.join()

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        # One that a driver holds in the kernel takes seconds, and the tracker has others to serve.
        ending = threading.Thread(target=process.close, name="tapml-browser-end", daemon=True)
        ending.start()
        self._endings = [each for each in self._endings if each.is_alive()] + [ending]

    def _again(self, why: str) -> None:
        process = self.process
        told = process.said() if process is not None else ""
        self._end()
        if not self._seen:
            self._failures += 1
        if self._failures >= _MOST_FAILURES:
            self._over = True
            self._say(
                f"browser {self.name!r} {why}, {_MOST_FAILURES} times without registering; it is "
                f"not started again. {self._browser.path} printed:\n{told or 'nothing'}"
            )
            return
        self._say(f"browser {self.name!r} {why}; it is restarted")
        self._start()

    def _start(self) -> None:
        self._seen, self._away = False, 0
        try:
            self.process = BrowserProcess(self._url, self._browser)
        except TapmlError as error:
            self._say(f"browser {self.name!r}: {error}; it is tried again in {START_SECONDS} s")
