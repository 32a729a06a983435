"""A device opened with less than its adapter has, so that the implementation refuses the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml_targets.limits import Limits

# What bounds a device's work, by the field of Limits that narrows it.
_NAMES: Final = {
    "max_threads_per_block": "max-compute-invocations-per-workgroup",
    "max_shared_memory_bytes": "max-compute-workgroup-storage-size",
    "max_buffer_bytes": "max-buffer-size",
    "max_binding_bytes": "max-storage-buffer-binding-size",
    "max_storage_buffers": "max-storage-buffers-per-shader-stage",
}
_BLOCK: Final = tuple(f"max-compute-workgroup-size-{axis}" for axis in "xyz")
_ALIGNMENT: Final = "min-storage-buffer-offset-alignment"


def required_limits(adapter: Mapping[str, int], wanted: Limits, stated: Limits) -> dict[str, int]:
    """The limits to open a device with, by WebGPU's names.

    Parameters
    ----------
    adapter
        What it has. Without asking one gets the standard's defaults, whatever that is.
    wanted
        Bounds that the device is to have.
    stated
        What the device has, as tapml states it: bounds that `wanted` does not narrow stay whole.
    """
    required = dict(adapter)
    for field, name in _NAMES.items():
        bound = getattr(wanted, field)
        if 0 < bound < getattr(stated, field):
            required[name] = bound
    for name, bound, most in zip(_BLOCK, wanted.max_block, stated.max_block, strict=True):
        if 0 < bound < most:
            required[name] = bound
    required[_ALIGNMENT] = max(required[_ALIGNMENT], wanted.offset_alignment)
    return required
