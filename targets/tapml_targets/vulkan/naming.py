"""Names for buffers and kernels, by which the validation layer's messages call them."""

from __future__ import annotations

from typing import Any, Final

from tapml_targets.vulkan.api import NULL, ffi, lib, struct

EXTENSION: Final = "VK_EXT_debug_utils"
BUFFER: Final = 9
PIPELINE: Final = 19


def give_name(device: Any, kind: int, handle: Any, name: str) -> None:
    """Name an object of an open device whose instance has :data:`EXTENSION`."""
    function = lib.vkGetDeviceProcAddr(device, b"vkSetDebugUtilsObjectNameEXT")
    if function == NULL:
        return
    info = struct(
        "VkDebugUtilsObjectNameInfoEXT",
        objectType=kind,
        objectHandle=int(ffi.cast("uintptr_t", handle)),
        pObjectName=name,
    )
    ffi.cast("PFN_vkSetDebugUtilsObjectNameEXT", function)(device, info)
