"""A browser as a device by the one name ``browser``: found at a tracker, or shown the page here."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from tapml_rpc.child_process import prepared_environment
from tapml_targets.child_process import OutputTail
from tapml_targets.errors import InputError, NoSuchDeviceError, SetupError, TapmlError
from tapml_targets.platforms import browser_platform, browser_standard

if TYPE_CHECKING:
    from tapml.devices.browser_process import BrowserProcess
    from tapml_rpc.security.credentials import Credentials
    from tapml_rpc.tracker.lease import Lease

Say = Callable[[str], None]

BROWSER: Final = "browser"
_WAIT: Final = "wait"
_HEADLESS: Final = "headless"
_WAYS: Final = (_WAIT, _HEADLESS, "chromium", "firefox")
_LIST_SECONDS: Final = 3.0
_KNOCK_SECONDS: Final = 1.0
# Seconds between checks of a browser while its page is waited for, and in all.
_LOOK_SECONDS: Final = 3.0
_LOOKS: Final = 30


def is_browser(spec: str) -> bool:
    """Whether a device is to be a browser."""
    return spec.partition(":")[0] == BROWSER


def check_browser(spec: str) -> None:
    """Check that a spec is one of those above; raises InputError, which names them."""
    _, mark, way = spec.partition(":")
    if mark and way not in _WAYS:
        raise InputError(
            f"{spec!r} does not name a browser: expected {BROWSER}, or {BROWSER}: and one of "
            f"{', '.join(_WAYS)}; a page by its name is tracker:NAME"
        )


def without_opening(spec: str) -> str:
    """The spec for the same browser, with the page opened by a person."""
    return f"{BROWSER}:{_WAIT}" if spec == BROWSER else spec


def lend_browser(
    spec: str,
    *,
    credentials: Credentials | None,
    say: Say | None,
    own_seconds: float | None = None,
) -> tuple[Lease, Callable[[], None]]:
    """Lease a browser's page, starting a tracker and a browser if needed.

    `credentials` are for a running tracker; those of the environment if None. `say` takes lines
    for a person: where the page is, what is waited for. `own_seconds` is that of
    :func:`~tapml_rpc.tracker.request.request_device`. Returns the lease, and a function that
    gives it back and ends all that was started, which may be called twice. Raises InputError if
    `spec` is malformed, SetupError if there is no browser to start, or it does not become a
    device.
    """
    from tapml.devices.tracker import VARIABLE
    from tapml_rpc.security.credentials import Credentials
    from tapml_rpc.tracker.request import request_device, tracker_credentials

    check_browser(spec)
    way = spec.partition(":")[2]
    tell = say or _on_standard_error
    with ExitStack() as stack:
        found = None
        if way in ("", _WAIT):
            secret = credentials or tracker_credentials(os.environ.get(VARIABLE, ""))
            found = _registered(secret, tell)
        if found is not None:
            address, name = found
            lease = request_device(
                address,
                name=name,
                own_seconds=own_seconds,
                credentials=secret,
                on_queue=lambda place: tell(str(place)),
            )
        else:
            tracker = stack.enter_context(OwnTracker())
            name = f"{BROWSER}-{secrets.token_hex(2)}"
            shown = _show(f"{tracker.page}#name={name}", way, tell, stack)
            lease = _wait_for(tracker.address, name, shown, Credentials())
        stack.callback(lease.release)
        ends = stack.pop_all()
    # A session that is never closed ends with the process; so does what was started for it.
    atexit.register(ends.close)

    def end() -> None:
        atexit.unregister(ends.close)
        ends.close()

    return lease, end


def _registered(credentials: Credentials | None, tell: Say) -> tuple[str, str] | None:
    """A running tracker's address and the name of one of its pages, a free one first."""
    from tapml.devices.listing import list_devices
    from tapml.devices.tracker import VARIABLE
    from tapml_rpc.tracker.options import DEFAULT_BIND

    given = os.environ.get(VARIABLE, "")
    address = given or DEFAULT_BIND
    if not given and not _listens(address):
        return None
    try:
        devices = list_devices(address, credentials=credentials, timeout=_LIST_SECONDS)
    except TapmlError as error:
        if given:
            tell(f"{error}; the page is shown from here")
        return None
    pages = [
        device
        for device in devices
        if device.description.platform == browser_platform()
        and "user_agent" in device.description.details
    ]
    if not pages:
        tell(f"the tracker at {address} has no browser; the page is shown from here")
        return None
    return address, min(pages, key=lambda page: len(page.leases)).name


def _listens(address: str) -> bool:
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), _KNOCK_SECONDS).close()
    except OSError:
        return False
    return True


def _show(url: str, way: str, tell: Say, stack: ExitStack) -> BrowserProcess | None:
    """Have the page opened; the browser that was started for it, None if a person opens it."""
    from tapml.devices.browser_process import AUTOMATIC, BrowserProcess, find_browser

    if not way and _has_screen() and webbrowser.open(url):
        tell(f"the page is open in your browser: {url}")
        tell("it is the device for as long as it is shown; waiting for it (Ctrl-C ends)")
        return None
    if way != _WAIT:
        try:
            browser = find_browser(way if way not in ("", _HEADLESS) else AUTOMATIC)
        except SetupError as error:
            if way:
                raise
            tell(str(error))
        else:
            tell(f"{browser.path.name} shows the page without a window: {url}")
            return stack.enter_context(BrowserProcess(url, browser))
    tell(f"open {url} in a browser with {browser_standard()}; waiting for it (Ctrl-C ends)")
    return None


def _has_screen() -> bool:
    if not sys.platform.startswith("linux"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _wait_for(
    tracker: str, name: str, shown: BrowserProcess | None, credentials: Credentials
) -> Lease:
    """Wait for the page; raises an error if a browser of ours does not become a device."""
    from tapml_rpc.tracker.request import request_device

    if shown is None:
        return request_device(tracker, name=name, credentials=credentials)
    for _ in range(_LOOKS):
        try:
            return request_device(
                tracker, name=name, credentials=credentials, timeout=_LOOK_SECONDS
            )
        except NoSuchDeviceError:
            if not shown.alive:
                break
    how = "shows the page, which has not registered as a device" if shown.alive else "has ended"
    raise SetupError(
        f"{shown.browser.path} {how}: it may have no {browser_standard()}; `{BROWSER}:{_WAIT}` "
        f"leaves the choice of a browser to you. It said:\n{shown.said() or 'nothing'}"
    )


def _on_standard_error(line: str) -> None:
    print(f"tapml: {line}", file=sys.stderr, flush=True)


_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 3.0
_TAIL_BYTES: Final = 4000
_LOOPBACK: Final = "127.0.0.1"


class OwnTracker:
    """A tracker on free ports of loopback; a context manager, which ends it.

    It has its own process group, so that Ctrl-C reaches only this process. Clients of this process
    connect to `address`; `page` makes a browser a device. Raises SetupError with the tracker's
    output if it does not start.
    """

    address: str
    page: str

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable, "-P", "-m", "tapml.cli.main", "rpc", "tracker",
                "--bind", f"tcp://{_LOOPBACK}:0", "--websocket", f"ws://{_LOOPBACK}:0",
                "--parent", str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=prepared_environment(browser_platform()),
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe
        self._printed = OutputTail(self._process.stderr, _TAIL_BYTES)
        try:
            line = self._announcement()
            self.address = str(line["address"])
            self.page = str(line["websocket"]).replace("ws", "http", 1) + "/"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; a second call does nothing."""
        process = self._process
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._printed.wait(_END_SECONDS)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _announcement(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None  # noqa: S101 - it is a pipe
        if select.select([output], [], [], _START_SECONDS)[0]:
            # One write of fewer bytes than a pipe takes at once.
            announced = output.readline()
            if announced:
                line: dict[str, Any] = json.loads(announced)
                return line
        self._process.kill()
        self._process.wait()
        raise SetupError(f"the tracker did not come up; it printed:\n{self._printed.text()}")
