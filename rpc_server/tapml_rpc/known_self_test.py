"""The self-test of a session's device, near or far: run once a day and driver, and cached.

A device of this machine is tested by :mod:`tapml_targets.self_test.known`. One elsewhere is tested
in a separate session, which alone is lost if its driver crashes.
"""

from __future__ import annotations

from typing import Any, Final

from tapml_rpc.client import Session
from tapml_rpc.reach import open_another, place_of
from tapml_rpc.self_test import self_test_over
from tapml_targets import probe_cache
from tapml_targets.description import fingerprint
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, InputError, ProtocolError, SetupError
from tapml_targets.self_test.facts import SelfTest, from_plain, to_plain
from tapml_targets.self_test.known import asked_of, self_test

_KIND: Final = "self-test-elsewhere"


def session_self_test(session: Session, *, refresh: bool = False) -> SelfTest | None:
    """The self-test of a session's device, run at most once a day and driver.

    Parameters
    ----------
    session
        What it holds stays.
    refresh
        Run it again instead of using the cached result.

    Returns
    -------
    SelfTest or None
        None for a checker, which is slow and tested only by `refresh`; and for a device elsewhere
        that is gone, or of an unknown platform.
    """
    device = session.device
    place = place_of(session)
    if not place:
        return self_test(device, policy="run" if refresh else "cached")
    known = None if refresh else remembered_elsewhere(device, place)
    if known is not None or (device.device_type == "checker" and not refresh):
        return known
    try:
        found = _measured(session)
    except (InputError, DeviceLostError):
        return None
    remember_elsewhere(device, place, found)
    return found


def remembered_elsewhere(description: DeviceDescription, place: str) -> SelfTest | None:
    """The cached self-test of a device elsewhere; None if there is none or it is too old.

    `place` is that of :func:`~tapml_rpc.reach.place_of`: of two boards with one fingerprint one may
    be damaged.
    """
    try:
        known = probe_cache.load(_KIND, place, _state(description))
        return None if known is None else from_plain(known)
    except (InputError, ProtocolError):
        return None


def remember_elsewhere(description: DeviceDescription, place: str, found: SelfTest) -> None:
    """Cache the self-test of a device elsewhere."""
    plain = to_plain(found)
    if found.problems:
        # A failure may be temporary: it expires sooner.
        plain["problem"] = "; ".join(found.problems)
    probe_cache.store(_KIND, place, _state(description), plain)


def _state(description: DeviceDescription) -> dict[str, Any]:
    return {"device": fingerprint(description)} | asked_of(description)


def _measured(session: Session) -> SelfTest:
    try:
        other = open_another(session)
    except SetupError:
        # It takes no other session beside this one.
        return self_test_over(session)
    with other:
        return self_test_over(other)
