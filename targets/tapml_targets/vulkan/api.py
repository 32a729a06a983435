"""Vulkan's C interface as this platform calls it: structures that hold what they point to, errors.

The package ``vulkan`` brings the declarations. Its structures do not keep alive what they point to;
those that :func:`struct` makes do.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import vulkan as vk

from tapml_targets.errors import DeviceLostError, RemoteError, SetupError, TapmlError

ffi: Final[Any] = vk.ffi
lib: Final[Any] = vk.lib
NULL: Final[Any] = ffi.NULL
WHOLE_SIZE: Final = (1 << 64) - 1

_HELD: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
# The sType of each structure that has one.
_KINDS: Final = {
    "VkApplicationInfo": 0,
    "VkInstanceCreateInfo": 1,
    "VkDeviceQueueCreateInfo": 2,
    "VkDeviceCreateInfo": 3,
    "VkSubmitInfo": 4,
    "VkMemoryAllocateInfo": 5,
    "VkFenceCreateInfo": 8,
    "VkQueryPoolCreateInfo": 11,
    "VkBufferCreateInfo": 12,
    "VkShaderModuleCreateInfo": 16,
    "VkPipelineShaderStageCreateInfo": 18,
    "VkComputePipelineCreateInfo": 29,
    "VkPipelineLayoutCreateInfo": 30,
    "VkDescriptorSetLayoutCreateInfo": 32,
    "VkDescriptorPoolCreateInfo": 33,
    "VkDescriptorSetAllocateInfo": 34,
    "VkWriteDescriptorSet": 35,
    "VkCommandPoolCreateInfo": 39,
    "VkCommandBufferAllocateInfo": 40,
    "VkCommandBufferBeginInfo": 42,
    "VkMemoryBarrier": 46,
    "VkDebugUtilsObjectNameInfoEXT": 1000128000,
    "VkPhysicalDeviceFeatures2": 1000059000,
    "VkPhysicalDeviceProperties2": 1000059001,
    "VkPhysicalDevice16BitStorageFeatures": 1000083000,
    "VkPhysicalDeviceSubgroupProperties": 1000094000,
    "VkPhysicalDeviceMaintenance3Properties": 1000168000,
    "VkPhysicalDevice8BitStorageFeatures": 1000177000,
    "VkPhysicalDeviceDriverProperties": 1000196000,
    "VkPhysicalDeviceShaderFloat16Int8Features": 1000082000,
    "VkPhysicalDeviceSubgroupSizeControlProperties": 1000225000,
    "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo": 1000225001,
    "VkPhysicalDeviceSubgroupSizeControlFeatures": 1000225002,
}
_NO_MEMORY: Final = frozenset({-1, -2, -10, -1000069000})
_LOST: Final = -4
_NAMES: Final = {
    -1: "out of host memory", -2: "out of device memory", -3: "initialisation failed",
    -4: "device lost", -5: "memory map failed", -6: "layer not present",
    -7: "extension not present", -8: "feature not present", -9: "incompatible driver",
    -10: "too many objects", -11: "format not supported", -12: "fragmented pool",
    -13: "unknown error", -1000069000: "out of pool memory", -1000012000: "invalid shader",
}  # fmt: skip


def struct(kind: str, **fields: Any) -> Any:
    """A pointer to a new structure, which keeps what it points to.

    A text becomes a C string.
    """
    made = ffi.new(f"{kind} *")
    if kind in _KINDS:
        made.sType = _KINDS[kind]
    held = []
    for name, given in fields.items():
        value = ffi.new("char[]", given.encode()) if isinstance(given, str) else given
        held.append(value)
        setattr(made, name, value)
    _HELD[made] = held
    return made


def array(kind: str, values: list[Any]) -> Any:
    """A new array of structures or handles, which keeps what they point to."""
    plain = [
        value[0] if isinstance(value, ffi.CData) and value in _HELD else value for value in values
    ]
    made = ffi.new(f"{kind}[]", plain)
    _HELD[made] = values
    return made


def texts(values: list[str]) -> Any:
    """A new array of C strings."""
    kept = [ffi.new("char[]", value.encode()) for value in values]
    made = ffi.new("char *[]", kept)
    _HELD[made] = kept
    return made


def check(result: int, device: str, what: str) -> None:
    """Raise what a result means, unless it is a success.

    Raises
    ------
    DeviceLostError, SetupError, RemoteError
        If the device is lost, has no room, or refuses for another reason.
    """
    if result >= 0:
        return
    name = _NAMES.get(result, "an error without a name")
    text = f"{name} (VkResult {result})"
    raise _error(result, f"{device}: {what} failed: {text}", what, text)


def _error(result: int, message: str, what: str, text: str) -> TapmlError:
    if result == _LOST:
        return DeviceLostError(f"{message}; open it again", command=what, driver_log=text)
    if result in _NO_MEMORY:
        return SetupError(f"{message}; free buffers or use a smaller model")
    return RemoteError(message, command=what, driver_log=text)


def created(function: Any, kind: str, device: str, what: str, *arguments: Any) -> Any:
    """The handle of `kind` that a ``vkCreate`` function writes behind its arguments."""
    handle = ffi.new(f"{kind} *")
    check(function(*arguments, NULL, handle), device, what)
    return handle[0]
