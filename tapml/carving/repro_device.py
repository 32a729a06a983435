"""Which device of this machine a repro folder is for."""

from __future__ import annotations

from tapml.carving.repro_folder import Repro
from tapml_targets.driver import DeviceDescription


def device_of(repro: Repro) -> DeviceDescription | str:
    """The device it was written for; the platform's default where that is not here."""
    from tapml_targets.ranking import list_devices

    platform, same = str(repro.device["platform"]), ("name", "vendor_platform")
    for device in list_devices(platform):
        if all(getattr(device, each) == repro.device.get(each) for each in same):
            return device
    return platform
