"""Opens a device anywhere: on this machine, at an address, lent by a tracker, a browser.

::

    opencl, opencl:1                 of this machine
    tcp://board:9190, wss://pixel:9443   a server's address
    tracker:pixel, tracker:kind=opencl   whatever a tracker lends (TAPML_TRACKER says which)
    browser, browser:headless        a browser, opened if none is registered
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from tapml.devices.browser import BROWSER, check_browser, is_browser, lend_browser
from tapml_targets.errors import InputError
from tapml_targets.platforms import platform_names

if TYPE_CHECKING:
    from tapml_rpc.security.credentials import Credentials
    from tapml_rpc.session import Session
    from tapml_rpc.tracker.lease import Lease
    from tapml_targets.driver import DeviceDescription

SCHEMES: Final = ("tcp://", "ws://", "wss://")
_TRACKER: Final = "tracker"
# Where the device of a session is, and how it is opened again, under the same lease.
_ways: Final[WeakKeyDictionary[Session, tuple[str, Callable[[], Session]]]] = WeakKeyDictionary()


def is_remote(spec: str) -> bool:
    """Whether a device is reached by an address, through a tracker, or is a browser."""
    if is_browser(spec):
        return True
    return spec.startswith(SCHEMES) or spec == _TRACKER or spec.startswith(f"{_TRACKER}:")


def check_spec(spec: str) -> None:
    """Check that a spec is of one of the kinds above, without looking for devices.

    Raises
    ------
    InputError
        If it is malformed; the message shows a valid one.
    """
    if is_browser(spec):
        check_browser(spec)
    if is_remote(spec):
        return
    _, mark, _ = spec.partition("://")
    if mark:
        raise InputError(
            f"{spec!r} is not a device's address: expected {', '.join(SCHEMES[:-1])} or "
            f"{SCHEMES[-1]}, then HOST:PORT, as `tapml rpc serve` prints it"
        )
    host, _, port = spec.rpartition(":")
    if host and port.isdecimal() and host not in platform_names():
        raise InputError(
            f"there is no platform {host!r} (there are {', '.join(platform_names())}); if "
            f"{spec!r} is a server's address, say tcp://{spec}, or ws:// or wss:// before it"
        )


def open_device(
    spec: str,
    *,
    dtype: str = "float32",
    kernel_deadline: float | None = None,
    credentials: Credentials | None = None,
    say: Callable[[str], None] | None = None,
    own_seconds: float | None = None,
    tracker: str | None = None,
) -> Session:
    """Open a session with the device that `spec` names.

    Parameters
    ----------
    spec
        As above.
    dtype
        What the kernels compute in; this machine's best device is ranked for it.
    kernel_deadline
        Seconds one command may take; the server's default if None.
    credentials
        Keys and tokens for an address or a tracker; those of the environment if None.
    say
        Takes a line while a tracker's queue or a browser's page is waited for.
    own_seconds
        How long to wait for a tracker's device that this process itself holds; without limit if
        None.
    tracker
        The tracker for ``tracker:`` specs; that of the environment if None.

    Raises
    ------
    InputError
        If `spec` is malformed, or names a device that this process holds after `own_seconds`.
    NoSuchDeviceError
        If there is no such device.
    SetupError
        If nothing answers, or the server refuses this client.
    """
    from tapml_rpc.client import connect
    from tapml_rpc.local import open_local

    check_spec(spec)
    if not is_remote(spec):
        return open_local(spec, dtype=dtype, kernel_deadline=kernel_deadline)
    if spec.startswith(SCHEMES):
        way = partial(connect, spec, kernel_deadline=kernel_deadline, credentials=credentials)
        return _noted(way(), spec, way)
    if is_browser(spec):
        lease, end = lend_browser(spec, credentials=credentials, say=say, own_seconds=own_seconds)
        return _lent(lease, end, kernel_deadline, credentials)
    from tapml.devices.tracker import resolve

    told = None if say is None else (lambda place: say(str(place)))
    lease = resolve(spec, tracker, own_seconds=own_seconds, credentials=credentials, on_queue=told)
    return _lent(lease, lease.release, kernel_deadline, credentials)


def _lent(
    lease: Lease,
    end: Callable[[], None],
    kernel_deadline: float | None,
    credentials: Credentials | None,
) -> Session:
    """A session with a leased device; `end` gives it back."""
    from tapml.devices.tracker import device_credentials
    from tapml_rpc.client import connect

    try:
        own = device_credentials(lease) if credentials is None else lease.credentials(credentials)
        way = partial(
            connect,
            lease.address,
            kernel_deadline=kernel_deadline,
            credentials=own,
            lease=lease,
        )
        session = way(on_close=end)
        lease.verify(session.device)
        return _noted(session, place_of_lent(lease.name), way)
    except BaseException:
        end()
        raise


def open_another(session: Session) -> Session:
    """Another session with the device of a session, whose faults do not affect the first.

    A device that a tracker lent is used under the same lease, and is given back with the first.
    Raises SetupError if the device takes no further session.
    """
    if session in _ways:
        place, way = _ways[session]
        return _noted(way(), place, way)
    from tapml_rpc.local import open_local

    return open_local(session.device)


def place_of(session: Session) -> str:
    """Where the device of an :func:`open_device` session is: tells two equal boards apart.

    Its server's address, ``tracker:NAME``, or ``browser``; empty for one of this machine.
    """
    return _ways[session][0] if session in _ways else ""


def place_of_lent(name: str) -> str:
    """The same for a tracker's device of this name."""
    # A page that was opened here has a new name each time, in the same browser.
    return BROWSER if name.startswith(f"{BROWSER}-") else f"{_TRACKER}:{name}"


def describe_device(spec: str) -> DeviceDescription:
    """Describe the device that `spec` names; one elsewhere is opened for it, and given back.

    Raises
    ------
    TapmlError
        As :func:`open_device` does.
    """
    check_spec(spec)
    if is_remote(spec):
        with open_device(spec) as session:
            return session.device
    from tapml_targets.ranking import find_device

    return find_device(spec)


def _noted(session: Session, place: str, way: Callable[[], Session]) -> Session:
    _ways[session] = place, way
    return session
