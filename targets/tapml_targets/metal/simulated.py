"""The simulated Metal device: kernels executed from source, on any machine with ziglang.

What it says is about the source, never about a Mac: see :mod:`tapml_targets.simulator`.
"""

from __future__ import annotations

from typing import Final

from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.errors import SetupError
from tapml_targets.limits import Limits
from tapml_targets.metal.description import ALIGNMENT, MOST_GROUPS, PLACES, WIDTH
from tapml_targets.metal.language import DIALECT
from tapml_targets.simulator.description import is_simulated, simulated_device
from tapml_targets.simulator.platform_devices import open_again

__all__ = ["is_simulated", "list_devices", "open_device"]

# Those of the first Macs with Apple's own GPUs (profiles/apple7.toml), and as much memory as a
# process may well have.
_THREADS: Final = 1024
_SHARED_BYTES: Final = 32768
_BUFFER_BYTES: Final = 4 << 30
LIMITS: Final = Limits(
    max_threads_per_block=_THREADS,
    max_block=(_THREADS, _THREADS, _THREADS),
    max_grid=(MOST_GROUPS, MOST_GROUPS, MOST_GROUPS),
    max_shared_memory_bytes=_SHARED_BYTES,
    max_buffer_bytes=_BUFFER_BYTES,
    features=frozenset({"float16", "int8", "int16", "int64", "subgroups"}),
    max_storage_buffers=PLACES - 1,
    offset_alignment=ALIGNMENT,
    subgroup_widths=(WIDTH, WIDTH),
    architecture="apple7",
)


def list_devices(index: int) -> list[DeviceDescription]:
    """The simulated device, at `index` of the platform's list; none without its compiler."""
    try:
        return [simulated_device("metal", index, "Apple7 GPU", LIMITS)]
    except SetupError:
        return []


def open_device(description: DeviceDescription) -> Driver:
    """Open the simulated device.

    Raises
    ------
    NoSuchDeviceError
        If its compiler is another one than it was, or not here.
    """
    return open_again(description, list_devices(description.index), DIALECT)
