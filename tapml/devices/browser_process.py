"""A browser of our own without a window, that shows one page: started, ended, kept registered."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from tapml_rpc.security.private_files import new_folder
from tapml_targets.child_process import OutputTail
from tapml_targets.errors import InputError, SetupError, TapmlError
from tapml_targets.platforms import browser_platform, platform_part
from tapml_targets.vulkan_loader.drivers import browser_environment

Kind = Literal["chromium", "firefox"]

AUTOMATIC: Final = "auto"
NAMES: Final[dict[Kind, tuple[str, ...]]] = {
    "chromium": (
        "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge",
    ),
    "firefox": ("firefox", "firefox-esr"),
}  # fmt: skip
_MAC: Final[dict[Kind, tuple[str, ...]]] = {
    "chromium": (
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
    ),
    "firefox": ("/Applications/Firefox.app/Contents/MacOS/firefox",),
}
_CHROMIUM_FLAGS: Final = (
    "--headless=new",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-crash-reporter",
    # Otherwise a page that nobody looks at is slowed down.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
)
_FIREFOX_PREFERENCES: Final = """\
user_pref("app.update.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("toolkit.telemetry.reportingpolicy.firstRun", false);
user_pref("browser.aboutwelcome.enabled", false);
user_pref("dom.min_background_timeout_value", 4);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("browser.sessionstore.resume_from_crash", false);
"""
# The browser takes the shell's place, $$. Once standard input ends, it ends, its profile is removed
# and whatever is left of its group ends.
_WATCHED: Final = (
    'exec 3<&0; ( read -r _ <&3; kill -KILL $$; sleep 1; rm -rf "$0"; kill -KILL 0 ) & '
    'exec "$@" 3<&- </dev/null'
)
_DOOR: Final = '<!doctype html><meta charset="utf-8"><script>location.replace(%s)</script>'
_END_SECONDS: Final = 10.0
_TAIL_BYTES: Final = 2000


@dataclass(frozen=True)
class Browser:
    """A browser of this machine; `kind` determines its command line."""

    kind: Kind
    path: Path

    def command(self, url: str, profile: Path) -> list[str]:
        """The command that opens a page with the folder `profile`, prepared for it."""
        asked = platform_part(browser_platform(), "browsers")
        if self.kind == "firefox":
            preferences = asked.FIREFOX_PREFERENCES + _FIREFOX_PREFERENCES
            (profile / "user.js").write_text(preferences, "utf-8")
            return [str(self.path), "--headless", "--no-remote", "--profile", str(profile), url]
        # Chromium's own sandbox refuses to run as root.
        root = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
        switches = (*_CHROMIUM_FLAGS, *root, *asked.chromium_switches())
        return [str(self.path), *switches, f"--user-data-dir={profile}", url]


def find_browser(wanted: str = AUTOMATIC) -> Browser:
    """Find the browser to start.

    `wanted` is ``auto`` for the first of :data:`NAMES` that is installed, ``chromium`` or
    ``firefox`` for the first of that kind, or a program's name or path. Raises InputError if it is
    not a program, SetupError if no browser is installed.
    """
    kinds: tuple[Kind, ...] = ("chromium", "firefox")
    if wanted in (AUTOMATIC, *kinds):
        chosen = [kind for kind in kinds if wanted in (AUTOMATIC, kind)]
        for kind in chosen:
            for name in (*NAMES[kind], *(_MAC[kind] if sys.platform == "darwin" else ())):
                found = shutil.which(name)
                if found is not None:
                    return Browser(kind, Path(found))
        looked = ", ".join(name for kind in chosen for name in NAMES[kind])
        raise SetupError(
            f"no browser here: looked for {looked}; install one (`apt-get install chromium`), or "
            "say where its program is (`tapml rpc tracker --browser PROGRAM`)"
        )
    found = shutil.which(str(Path(wanted).expanduser()) if "/" in wanted else wanted)
    if found is None:
        raise InputError(
            f"{wanted!r} is not a program; expected {AUTOMATIC}, {' or '.join(kinds)}, or a "
            "browser's program"
        )
    return Browser("firefox" if "firefox" in Path(found).name.lower() else "chromium", Path(found))


class BrowserProcess:
    """A running browser with a page; a context manager, which ends it.

    The `url` may hold a token: a file that only this user can read leads there, since every user of
    this machine can read a command line. `process` is the first one, which leads a group; `profile`
    is the folder with all it keeps. Raises SetupError if there is no browser, or it cannot be
    started.
    """

    def __init__(self, url: str, browser: Browser | None = None) -> None:
        self.browser = browser or find_browser()
        # Chromium makes a socket below it.
        self.profile = new_folder("tapml-browser-")
        door = self.profile / "open.html"
        try:
            door.write_text(_DOOR % json.dumps(url).replace("<", "\\u003c"), "utf-8")
            command = self.browser.command(door.as_uri(), self.profile)
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, str(self.profile), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=self._environment(),
            )
        except OSError as error:
            self._remove_profile()
            raise SetupError(f"{self.browser.path} does not start: {error}") from error
        assert self.process.stderr is not None  # noqa: S101 - it is a pipe
        self._said = OutputTail(self.process.stderr, _TAIL_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether its first process runs; its page may have crashed nevertheless."""
        return self.process.poll() is None

    def said(self) -> str:
        """The end of what it wrote to standard error."""
        return self._said.text()

    def signal(self, number: int) -> None:
        """Send a signal to all its processes: SIGSTOP acts like a machine that falls asleep."""
        # macOS forbids to signal a group of which only dead processes are left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill all its processes without waiting; :meth:`close` does the rest."""
        # A browser asked to end waits for its GPU, and a kernel may hold that for ever.
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """End all its processes, which drivers may keep for up to 10 s, and remove its profile."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._remove_profile()

    def _environment(self) -> dict[str, str]:
        # What it leaves in the folder for temporary files is removed with its profile.
        environment = browser_environment(os.environ) | {"TMPDIR": str(self.profile)}
        if self.browser.kind == "firefox":
            environment["MOZ_CRASHREPORTER_DISABLE"] = "1"
        return environment

    def _remove_profile(self) -> None:
        # A dying process may write once more.
        for _ in range(3):
            shutil.rmtree(self.profile, ignore_errors=True)
            if not self.profile.exists():
                return


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


def named_browsers(wanted: Iterable[str]) -> dict[str, Browser]:
    """The browsers of :func:`find_browser`, by the names that their devices get."""
    named: dict[str, Browser] = {}
    for browser in map(find_browser, wanted):
        same = sum(other.kind == browser.kind for other in named.values())
        named[f"{browser.kind}-{same + 1}" if same else browser.kind] = browser
    return named


@contextmanager
def kept_browsers(
    page: str, browsers: Mapping[str, Browser], patience_seconds: float
) -> Iterator[Callable[[Collection[str]], None]]:
    """Browsers that show a tracker's `page` until the end of the block.

    Yields a function to call once a second with the names of the registered devices.
    """
    keepers: list[BrowserKeeper] = []

    def look(registered: Collection[str]) -> None:
        for keeper in keepers:
            keeper.tick(registered=keeper.name in registered)

    try:
        for name, browser in browsers.items():
            url = f"{page}{'&' if '#' in page else '#'}name={name}"
            keepers.append(BrowserKeeper(url, name, browser, patience_seconds))
        yield look
    finally:
        for keeper in keepers:
            keeper.close()
        for keeper in keepers:
            keeper.wait()
