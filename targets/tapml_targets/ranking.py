"""Which device to use: by type, then by how fast it runs a kernel of the model's dtype.

Devices of about the same speed keep the platform's order, since other load during the probe must
not decide between them.

A driver may list a device and fail every build, hang, or kill the process that asks. So devices
are listed and tried in child processes with a deadline, and a device counts once a kernel has been
built and has computed the right result there. Results are kept on disk for as long as the
installed drivers stay the same, for a day at most.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml_targets import errors, probe_cache
from tapml_targets.checker import CHECKS
from tapml_targets.child_probe import SECONDS_VARIABLE, ask_child, probe_seconds
from tapml_targets.description import fingerprint, from_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.driver_discovery import driver_discovery
from tapml_targets.errors import (
    InputError,
    NoSuchDeviceError,
    ProtocolError,
    SetupError,
    TapmlError,
)
from tapml_targets.platforms import (
    DEFAULT_PLATFORM,
    check_platform,
    has_part,
    load_driver_module,
    own_platforms,
    platform_names,
    platform_state,
)

_TYPE_ORDER: Final = {"gpu": 0, "accelerator": 1, "cpu": 2, "simulated": 3, "checker": 4}
# On a busy machine a device may seem twice as slow as it is.
_MUCH_FASTER: Final = 3.0
RANKED_DTYPES: Final = ("float32", "float16", "float64")
_ALWAYS_THERE: Final = "float32"


@dataclass(frozen=True)
class RankedDevice:
    """A device and how its self-test went.

    Attributes
    ----------
    description
        The device.
    milliseconds
        Time of the probe kernel; None if there is no probe or it failed.
    problem
        Why the device cannot be used for the dtype; empty if it can.
    """

    description: DeviceDescription
    milliseconds: float | None
    problem: str = ""

    @property
    def spec(self) -> str:
        """How the command line names it: ``opencl:1``."""
        return f"{self.description.platform}:{self.description.index}"


def rank_devices(
    platform: str, dtype: str = "float32", *, refresh: bool = False
) -> list[RankedDevice]:
    """All devices of `platform`, best first for kernels in `dtype`.

    Usable ones come first: GPUs, accelerators, processors, simulated devices, then checkers; among
    equals one that runs the probe kernel in less than a third of another's time goes before it, and
    else the one that is listed first. Then those that failed, each with its problem.

    Parameters
    ----------
    platform
        Folder name of the platform.
    dtype
        The model's dtype: ``float16``, ``float32``, ``float64``.
    refresh
        List and try again instead of using cached results.

    Raises
    ------
    InputError
        If there is no such platform, or devices are not ranked for `dtype`.
    SetupError
        If the platform's package is missing, or listing its devices hangs or crashes.
    """
    check_platform(platform)
    if dtype not in RANKED_DTYPES:
        raise InputError(
            f"devices are ranked for {', '.join(RANKED_DTYPES)}, not {dtype!r}; "
            "give the dtype that the kernels compute in"
        )
    ranked = [
        _try(description, dtype, refresh) for description in list_devices(platform, refresh=refresh)
    ]
    return in_order(ranked)


def default_device(platform: str, dtype: str = "float32") -> DeviceDescription:
    """The best usable device; never a checker.

    Raises
    ------
    NoSuchDeviceError
        If no device passes; each is named with its problem.
    """
    ranked = rank_devices(platform, dtype)
    for device in ranked:
        if not device.problem and device.description.device_type != "checker":
            return device.description
    if not ranked:
        left = _left_out_text(platform)
        raise NoSuchDeviceError(
            f"this machine has no {platform} device; {left or device_remedy(platform)}"
        )
    reasons = "; ".join(
        f"{device.spec} {device.description.name}: "
        f"{device.problem or 'a checker, used only when named'}"
        for device in ranked
    )
    alone = all(device.description.device_type == "checker" for device in ranked)
    hint = _left_out_text(platform) or (device_remedy(platform) if alone else "")
    hint = f"; {hint}" if hint else ""
    raise NoSuchDeviceError(f"no {platform} device can be used for {dtype}: {reasons}{hint}")


def list_devices(platform: str, *, refresh: bool = False) -> list[DeviceDescription]:
    """The devices of a platform as a child process lists them.

    Raises
    ------
    SetupError
        If the platform's package is missing, or its drivers hang or crash when asked.
    """
    check_platform(platform)
    if platform in own_platforms() and not has_part(platform, "probe"):
        # No foreign driver is behind it.
        devices: list[DeviceDescription] = load_driver_module(platform).list_devices()
        return devices
    discovery = driver_discovery(platform)
    if refresh:
        # A driver that was left out may have been repaired.
        discovery.forget_faulty_drivers()
    state = _listing_state(platform)
    known = None if refresh else probe_cache.load("list", platform, state)
    if known is not None:
        try:
            return [from_plain(device) for device in known["devices"]]
        except (ProtocolError, KeyError, TypeError):
            pass
    seconds = probe_seconds()
    answer, problem = ask_child(["list", platform], seconds)
    # One driver takes the process down for all of them.
    if answer is None and discovery.set_faulty_drivers_aside(
        lambda environ: ask_child(["list", platform], seconds, environ)[1]
    ):
        state = _listing_state(platform)
        answer, problem = ask_child(["list", platform], seconds)
    if answer is None:
        chosen = discovery.chosen_by()
        remedy = f"; {chosen} chooses the drivers: take the faulty one out of it" if chosen else ""
        raise SetupError(f"listing the {platform} devices failed: {problem}{remedy}")
    if "problem" in answer:
        raise _error(answer)
    listed = [from_plain(device) for device in answer["devices"]]
    if any(device.platform != platform for device in listed):
        raise SetupError(f"the driver of {platform} lists devices of another platform; update it")
    probe_cache.store("list", platform, state, {"devices": answer["devices"]})
    return listed


def parse_device(text: str) -> tuple[str, int | None]:
    """Split ``platform`` or ``platform:index``.

    Raises
    ------
    InputError
        If there is no such platform or the index is not a number.
    """
    platform, colon, index = text.partition(":")
    check_platform(platform)
    if not colon:
        return platform, None
    if not (index.isascii() and index.isdigit() and len(index) <= 6):
        raise InputError(
            f"expected PLATFORM or PLATFORM:INDEX, such as {DEFAULT_PLATFORM}:0, got {text!r}"
        )
    return platform, int(index)


def find_device(text: str, dtype: str = "float32") -> DeviceDescription:
    """The device that ``opencl`` (the best one) or ``opencl:1`` names.

    Raises
    ------
    NoSuchDeviceError
        If it does not exist; the devices that do are listed.
    """
    platform, index = parse_device(text)
    if index is None:
        return default_device(platform, dtype)
    devices = list_devices(platform)
    for device in devices:
        if device.index == index:
            return device
    known = "; ".join(f"{platform}:{device.index} {device.name}" for device in devices)
    left = _left_out_text(platform)
    raise NoSuchDeviceError(
        f"there is no device {text!r}; this machine has {known or 'no ' + platform + ' device'}"
        + (f"; {left}" if left else "")
    )


def in_order(devices: Sequence[RankedDevice]) -> list[RankedDevice]:
    """Devices, best first."""
    groups: dict[tuple[bool, int], list[RankedDevice]] = {}
    for device in sorted(devices, key=lambda each: each.description.index):
        order = _TYPE_ORDER.get(device.description.device_type, len(_TYPE_ORDER))
        groups.setdefault((bool(device.problem), order), []).append(device)
    ranked: list[RankedDevice] = []
    for _, left in sorted(groups.items()):
        while left:
            bound = _MUCH_FASTER * min(map(_time, left))
            following = next(device for device in left if _time(device) <= bound)
            left.remove(following)
            ranked.append(following)
    return ranked


def _time(device: RankedDevice) -> float:
    return float("inf") if device.milliseconds is None else device.milliseconds


def _try(description: DeviceDescription, dtype: str, refresh: bool) -> RankedDevice:
    platform = description.platform
    if dtype != _ALWAYS_THERE and dtype not in description.limits.features:
        return RankedDevice(description, None, f"it has no {dtype}")
    if not has_part(platform, "probe") or description.device_type == "checker":
        # A checker is used only when named, and is thousands of times slower.
        return RankedDevice(description, None)
    state = {
        "device": fingerprint(description),
        "drivers": _drivers_state(platform),
    }
    known = None if refresh else probe_cache.load("try", dtype, state)
    if known is None:
        known = _trial(description, dtype)
        probe_cache.store("try", dtype, state, known)
    milliseconds, problem = known.get("milliseconds"), known.get("problem", "")
    if not isinstance(milliseconds, float):
        return RankedDevice(description, None, str(problem) or "its self-test gave no result")
    return RankedDevice(description, milliseconds)


def _trial(description: DeviceDescription, dtype: str) -> dict[str, Any]:
    arguments = ["try", description.platform, str(description.index), dtype]
    hint = f" ({SECONDS_VARIABLE}=300 in the environment gives a slow machine longer)"
    answer, problem = ask_child(arguments, probe_seconds(), slow_hint=hint)
    if answer is None:
        return {"problem": f"its self-test failed: {problem}"}
    if "problem" in answer:
        return {"problem": f"its self-test failed: {answer['problem']}"}
    if answer.get("fingerprint") != fingerprint(description):
        return {"problem": "the device at this index changed while it was tried"}
    return {"milliseconds": answer["milliseconds"]}


def _error(answer: dict[str, Any]) -> TapmlError:
    kind = getattr(errors, str(answer.get("kind")), SetupError)
    if not (isinstance(kind, type) and issubclass(kind, TapmlError)):
        kind = SetupError
    return kind(str(answer["problem"]))


def left_out_drivers(platform: str) -> dict[str, str]:
    """The drivers of a platform that hung or crashed when they were asked for their devices.

    They are left out for a day, or until a listing refreshes.

    Returns
    -------
    dict
        What each driver did, by the file that names it.

    Raises
    ------
    InputError
        If there is no such platform.
    """
    return driver_discovery(platform).left_out()


def _drivers_state(platform: str) -> str:
    checks = os.environ.get(CHECKS, "")
    return driver_discovery(platform).drivers_state() + platform_state(platform) + checks


def _listing_state(platform: str) -> tuple[str, int]:
    # A driver for processors counts those that this process may use: `taskset`, a container.
    affinity = getattr(os, "sched_getaffinity", None)
    return _drivers_state(platform), len(affinity(0)) if affinity else os.cpu_count() or 0


def _left_out_text(platform: str) -> str:
    left = left_out_drivers(platform)
    if not left:
        return ""
    drivers = "; ".join(f"{Path(name).name}: {why}" for name, why in left.items())
    return f"left out for a day: {drivers}; `tapml devices --probe` lets it in again"


def device_remedy(platform: str) -> str:
    """What to do where a platform has no device."""
    found = str(getattr(load_driver_module(platform), "REMEDY", ""))
    if not found:
        others = ", ".join(name for name in platform_names() if name != platform)
        found = f"other platforms: {others}"
    chosen = driver_discovery(platform).chosen_by()
    return f"{chosen} chooses the drivers: unset it, or {found}" if chosen else found
