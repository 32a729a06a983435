"""Which device of this machine a repro folder is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tapml.carving.repro_folder import Repro
from tapml_targets.driver import DeviceDescription


def device_of(repro: Repro) -> DeviceDescription | str:
    """The device it was written for; the platform's default where that is not here."""
    return device_like(repro.device)


def device_like(written: Mapping[str, Any]) -> DeviceDescription | str:
    """The device that a folder describes, as :func:`device_of` finds it."""
    from tapml_targets.ranking import list_devices

    platform, same = str(written["platform"]), ("name", "vendor_platform")
    for device in list_devices(platform):
        if all(getattr(device, each) == written.get(each) for each in same):
            return device
    return platform
