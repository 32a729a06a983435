"""Simulated devices behind the real ones in a platform's list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tapml_targets.description import find_again
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.errors import SetupError
from tapml_targets.simulator.description import is_simulated
from tapml_targets.simulator.driver import open_simulated


def real_and_simulated(
    real: Callable[[], Sequence[DeviceDescription]],
    simulated: Callable[[int], Sequence[DeviceDescription]],
) -> list[DeviceDescription]:
    """List a platform's GPUs, and behind them its simulated devices.

    Parameters
    ----------
    real
        Lists the GPUs; raises SetupError if their bindings are missing.
    simulated
        Lists the simulated devices from a place on; raises SetupError if their compiler is missing.

    Raises
    ------
    SetupError
        If both are missing, with both reasons.
    """
    found: list[DeviceDescription] = []
    missing: list[SetupError] = []
    for listed in (lambda _: real(), simulated):
        try:
            found += listed(len(found))
        except SetupError as error:
            missing.append(error)
    if len(missing) > 1:
        raise SetupError(f"{missing[0]}; {missing[1]}")
    return found


def open_again(
    description: DeviceDescription, devices: Sequence[DeviceDescription], dialect: str
) -> Driver:
    """Open the simulated device of `devices` that `description` names.

    Raises
    ------
    NoSuchDeviceError
        If its compiler is another one than it was, or not here.
    """
    simulated = [each for each in devices if is_simulated(each)]
    _, found = find_again(description, simulated, lambda each, _: each)
    return open_simulated(found, dialect, found.limits.subgroup_widths[0])
