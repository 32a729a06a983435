"""Another driver for the same kernels: what is wrong on one and right on the other is its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import TapmlError
from tapml_targets.ranking import rank_devices


def second_driver(session: Session) -> Callable[[], AbstractContextManager[Session]] | None:
    """What opens a session on another driver of the same platform on this machine.

    Returns
    -------
    Callable or None
        Opens the best device, among those that pass their self-test, whose driver is not the
        session's; each call starts a server process that ends with the session. None where there is
        no such device. Checkers are no second driver: they run a kernel thousands of times slower.
    """
    first = session.device
    try:
        ranked = rank_devices(first.platform)
    except TapmlError:
        return None
    for device in ranked:
        other = device.description
        if (
            not device.problem
            and other.device_type != "checker"
            and _driver(other) != _driver(first)
        ):
            return lambda: open_local(other)
    return None


def _driver(device: DeviceDescription) -> tuple[str, str]:
    return device.vendor_platform, device.driver_version
