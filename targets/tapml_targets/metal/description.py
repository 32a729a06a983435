"""An Apple GPU as tapml describes devices."""

from __future__ import annotations

import platform
from typing import Any, Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.limits import Limits

# Places of buffers that a kernel has, one of which is for the structure of its numbers.
# https://developer.apple.com/metal/Metal-Feature-Set-Tables.pdf, "Maximum number of entries in the
# buffer argument table, per compute command encoder".
PLACES: Final = 31
# `setBuffer:offset:atIndex:` of Apple's documentation: a multiple of what the kernel reads there,
# which is at most 16 bytes.
ALIGNMENT: Final = 16
# Metal counts threads of a grid with 32 bits in `uint` positions.
MOST_GROUPS: Final = (1 << 32) - 1
WIDTH: Final = 32
"""Threads of a SIMD group of Apple's GPUs."""

_NEWEST: Final = 10
# The first family with `simd_shuffle` and its like, of the same tables.
_SHUFFLES: Final = 6


def describe(metal: Any, device: Any, index: int) -> DeviceDescription:
    """What `device`, an MTLDevice, states; `metal` is the module of the binding."""
    family = _family(metal, device)
    size = device.maxThreadsPerThreadgroup()
    block = (int(size.width), int(size.height), int(size.depth))
    features = {"float16", "int8", "int16", "int64"}
    widths = (0, 0)
    if family >= _SHUFFLES:
        features.add("subgroups")
        widths = (WIDTH, WIDTH)
    release = platform.mac_ver()[0] or "unknown"
    return DeviceDescription(
        platform="metal",
        index=index,
        name=str(device.name()),
        vendor_platform="Apple" if family else "Metal",
        device_type="gpu",
        driver_version=f"macOS {release}",
        limits=Limits(
            max_threads_per_block=block[0],
            max_block=block,
            max_grid=(MOST_GROUPS, MOST_GROUPS, MOST_GROUPS),
            max_shared_memory_bytes=int(device.maxThreadgroupMemoryLength()),
            max_buffer_bytes=int(device.maxBufferLength()),
            memory_bytes=int(device.recommendedMaxWorkingSetSize()),
            max_arguments=0,
            features=frozenset(features),
            max_binding_bytes=int(device.maxBufferLength()),
            max_storage_buffers=PLACES - 1,
            offset_alignment=ALIGNMENT,
            subgroup_widths=widths,
            architecture=f"apple{family}" if family else "",
        ),
        details={
            "unified_memory": "yes" if device.hasUnifiedMemory() else "no",
            "registry_id": f"{int(device.registryID()):#x}",
        },
    )


def _family(metal: Any, device: Any) -> int:
    """The newest of Apple's GPU families that it is of; 0 for a GPU of another maker."""
    for family in range(_NEWEST, 1, -1):
        constant = getattr(metal, f"MTLGPUFamilyApple{family}", None)
        if constant is not None and device.supportsFamily_(constant):
            return family
    return 0
