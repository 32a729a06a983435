"""A moved model before its device is open, from a package or a finished session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tapml.devices import reach
from tapml.models.chat_template import ChatTemplate
from tapml.models.stored import StoredModel
from tapml.models.text import Codec
from tapml.package.in_process import open_in_process
from tapml.package.manifest import ValidatedDevice
from tapml.package.sample import Sample
from tapml.plan.graph_plan import GraphPlan
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.description import fingerprint
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, NoSuchDeviceError
from tapml_targets.library import Library
from tapml_targets.ranking import default_device, find_device, list_devices, parse_device

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Runnable:
    """Everything that a run needs; weights are read when they are used.

    `open_codec` makes the tokenizer and raises :class:`InputError` if there is none. `validated` is
    None if the device of the validation is unknown.
    """

    model: StoredModel
    plan: GraphPlan
    library: Library
    weights: Mapping[str, Array]
    open_codec: Callable[[], Codec]
    validated: ValidatedDevice | None
    sample: Sample | None = None
    chat_template: ChatTemplate | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(
            int(np.prod(each.shape, dtype=np.int64)) * self.weights[name].itemsize
            for name, each in self.plan.weights.items()
        )


def open_device(
    runnable: Runnable,
    wanted: str | None = None,
    *,
    own_process: bool = False,
    say: Callable[[str], None] | None = None,
) -> Session:
    """Open a device for a model.

    Parameters
    ----------
    runnable
        The model.
    wanted
        ``opencl:1``, or ``opencl`` for the best one; a server's ``tcp://host:port`` or
        ``wss://host:port``, or ``tracker:NAME``; None for the validated device if it is here,
        else the best one of its platform.
    own_process
        Whether a separate process drives the device, as it always does if the kernels are
        machine code or this process cannot see the device.
    say
        Takes a line while the call waits in a tracker's queue.

    Raises
    ------
    InputError
        If `wanted` is of another platform than the model's kernels.
    NoSuchDeviceError
        If there is no such device.
    SetupError
        If the platform's package or driver is missing, or nothing answers at an address.
    """
    if wanted is not None and reach.is_remote(wanted):
        return _elsewhere(runnable, wanted, say)
    device = _choose(runnable, wanted)
    machine_code = any(module.kind == "machine" for module in runnable.library.modules)
    if not own_process and not machine_code:
        # A loader initialized earlier in this process may miss a driver.
        with suppress(NoSuchDeviceError):
            return open_in_process(device)
    return open_local(device, dtype=runnable.model.dtype)


def difference_from(validated: ValidatedDevice | None, device: DeviceDescription) -> str | None:
    """How the device differs from the validated one; None if it does not."""
    if validated is None or fingerprint(device) == validated.fingerprint:
        return None
    here = (device.name, device.vendor_platform)
    there = (validated.name, validated.vendor_platform)
    if here != there:
        return f"validated on {there[0]} ({there[1]}), runs on {here[0]} ({here[1]})"
    if device.driver_version != validated.driver_version:
        return (
            f"validated with driver {validated.driver_version}, runs with {device.driver_version}"
        )
    return f"{device.name} has other features or limits than when the model was validated on it"


def _elsewhere(runnable: Runnable, wanted: str, say: Callable[[str], None] | None) -> Session:
    session = reach.open_device(wanted, say=say)
    if session.device.platform == runnable.library.target:
        return session
    session.close()
    raise _another_platform(runnable, wanted, session.device.platform)


def _another_platform(runnable: Runnable, wanted: str, platform: str) -> InputError:
    target = runnable.library.target
    return InputError(
        f"the kernels of {runnable.model.name} are for {target}, and {wanted} is no {target} "
        f"device: choose one of `tapml devices`, or move the model to {platform} "
        f"(`tapml offload --target {platform}`)"
    )


def _choose(runnable: Runnable, wanted: str | None) -> DeviceDescription:
    platform = runnable.library.target
    dtype = runnable.model.dtype
    if wanted is not None:
        reach.check_spec(wanted)
        asked, _ = parse_device(wanted)
        if asked != platform:
            raise _another_platform(runnable, wanted, asked)
        return find_device(wanted, dtype)
    if runnable.validated is not None:
        for device in list_devices(platform):
            if fingerprint(device) == runnable.validated.fingerprint:
                return device
    return default_device(platform, dtype)
