"""Devices by name, kind or feature: a tracker, its leases and queue, a relay for hidden devices."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tapml_rpc.tracker.lease import Lease
    from tapml_rpc.tracker.lent import HeldLease
    from tapml_rpc.tracker.listing import ListedDevice, list_devices
    from tapml_rpc.tracker.registration import Registration
    from tapml_rpc.tracker.request import (
        QueuePlace,
        is_tracker_spec,
        request_device,
        resolve,
        tracker_address,
        tracker_credentials,
    )

__all__ = [
    "HeldLease",
    "Lease",
    "ListedDevice",
    "QueuePlace",
    "Registration",
    "is_tracker_spec",
    "list_devices",
    "request_device",
    "resolve",
    "tracker_address",
    "tracker_credentials",
]

# Looked up late: a session's link imports this package only for its relay addresses.
_MODULES: Final = {
    "HeldLease": "lent",
    "Lease": "lease",
    "ListedDevice": "listing",
    "QueuePlace": "request",
    "Registration": "registration",
    "is_tracker_spec": "request",
    "list_devices": "listing",
    "request_device": "request",
    "resolve": "request",
    "tracker_address": "request",
    "tracker_credentials": "request",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
