"""The self-test of a session's device, wherever that is: run once a day and driver, and remembered.

A device of this machine is asked beside its driver (:mod:`tapml_targets.self_test.known`). One
elsewhere is asked in a session of its own, so that a driver that crashes over it costs that one.
"""

from __future__ import annotations

from typing import Any, Final

from tapml_rpc.client import Session
from tapml_rpc.reach import open_another, place_of
from tapml_rpc.self_test import self_test_over
from tapml_targets import probe_cache
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError, InputError, ProtocolError, SetupError
from tapml_targets.fingerprint import fingerprint
from tapml_targets.self_test.facts import SelfTest, from_plain, to_plain
from tapml_targets.self_test.known import asked_of, usual_self_test

_KIND: Final = "self-test-elsewhere"


def session_self_test(session: Session, *, refresh: bool = False) -> SelfTest | None:
    """What the device of a session does, measured at most once a day and driver.

    Parameters
    ----------
    session
        What it holds stays.
    refresh
        Measure again instead of using what is known.

    Returns
    -------
    SelfTest or None
        None for a checker, which is slow and tested only by `refresh`; and for a device elsewhere
        that is gone, or of a platform that is not known here.
    """
    device = session.device
    place = place_of(session)
    if not place:
        return usual_self_test(device, refresh=refresh)
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
    """What a device elsewhere was found to do; None where that is nothing or too old.

    Parameters
    ----------
    place
        Where it is, as :func:`~tapml_rpc.reach.place_of` says: of two boards with one fingerprint
        one may be damaged.
    """
    try:
        known = probe_cache.load(_KIND, place, _state(description))
        return None if known is None else from_plain(known)
    except (InputError, ProtocolError):
        return None


def remember_elsewhere(description: DeviceDescription, place: str, found: SelfTest) -> None:
    """Keep what a device elsewhere was found to do."""
    plain = to_plain(found)
    if found.problems:
        # A failure may be of the moment: it is forgotten sooner.
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
