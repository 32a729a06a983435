"""An instance of Vulkan and the devices behind it that compute, as tapml describes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import NoSuchDeviceError, SetupError
from tapml_targets.installed import package_version
from tapml_targets.limits import Limits
from tapml_targets.vulkan.api import NULL, check, ffi, lib, struct, texts
from tapml_targets.vulkan.discovery import REMEDY
from tapml_targets.vulkan.naming import EXTENSION
from tapml_targets.vulkan_loader.drivers import NO_JSON, broken_choices
from tapml_targets.vulkan_loader.manifests import swiftshader_version
from tapml_targets.vulkan_loader.validation import is_checking, kind_of_device

_API_1_1: Final = (1 << 22) | (1 << 12)
# What the validation layer writes through, it may switch on from this version.
_API_1_2: Final = (1 << 22) | (2 << 12)
_COMPUTE_BIT: Final = 2
# What the loader answers where there is no driver, and a driver where there is no device.
_NO_DRIVER, _NO_DEVICE = -9, -3
_KINDS: Final = {1: "gpu", 2: "gpu", 3: "gpu", 4: "cpu"}
_DISCRETE: Final = 2
_DEVICE_LOCAL: Final = 1
_MAX_INDEX: Final = (1 << 31) - 1
_ALIGNMENT: Final = 16
# Elementary operations, and those with which lanes exchange values.
_SUBGROUP_OPERATIONS: Final = 1
_SUBGROUP_EXCHANGE: Final = 0x10 | 0x20
_SUBGROUP_SIZES: Final = "VK_EXT_subgroup_size_control"
_COMPUTE_STAGE: Final = 0x20


@dataclass(frozen=True)
class PhysicalDevice:
    """A device of an instance.

    Attributes
    ----------
    handle
        Vulkan's.
    description
        As tapml describes it.
    family
        The queue family that computes.
    timestamp_bits
        Of that family's timestamps; 0 for none.
    timestamp_nanoseconds
        What a timestamp counts in.
    alignment
        What a window's start must be a multiple of.
    groups
        Workgroups along each axis.
    discrete
        Whether it has memory of its own.
    features
        Chained structures with what is there, for opening it.
    """

    handle: Any
    description: DeviceDescription
    family: int
    timestamp_bits: int
    timestamp_nanoseconds: float
    alignment: int
    groups: tuple[int, int, int]
    features: Features
    discrete: bool


class Features:
    """What a device has beside the least, as structures by which it is opened with all of that."""

    def __init__(self, handle: Any, api_version: int, extensions: frozenset[str]) -> None:
        self.storage16 = struct("VkPhysicalDevice16BitStorageFeatures")
        self.storage8 = struct("VkPhysicalDevice8BitStorageFeatures")
        self.arithmetic = struct("VkPhysicalDeviceShaderFloat16Int8Features")
        core = api_version >= (1 << 22) | (2 << 12)
        self.extensions: list[str] = [
            name
            for name in ("VK_KHR_8bit_storage", "VK_KHR_shader_float16_int8")
            if name in extensions and not core
        ]
        self.subgroups = struct("VkPhysicalDeviceSubgroupSizeControlFeatures")
        chain = [self.storage16]
        if _SUBGROUP_SIZES in extensions:
            self.extensions.append(_SUBGROUP_SIZES)
            chain.append(self.subgroups)
        if core or "VK_KHR_8bit_storage" in extensions:
            chain.append(self.storage8)
        if core or "VK_KHR_shader_float16_int8" in extensions:
            chain.append(self.arithmetic)
        for each, following in zip(chain, [*chain[1:], NULL], strict=True):
            each.pNext = following
        self.all = struct("VkPhysicalDeviceFeatures2", pNext=chain[0])
        lib.vkGetPhysicalDeviceFeatures2(handle, self.all)
        plain = self.all.features
        found = {
            "float64": plain.shaderFloat64,
            "int64": plain.shaderInt64,
            "float16": self.arithmetic.shaderFloat16 and self.storage16.storageBuffer16BitAccess,
            "int16": self.storage16.storageBuffer16BitAccess,
            "int8": self.storage8.storageBuffer8BitAccess,
        }
        self.names = frozenset(name for name, there in found.items() if there)
        robust = plain.robustBufferAccess and not is_checking()
        # Only what kernels use: each of the others may cost something.
        self.all.features = ffi.new(
            "VkPhysicalDeviceFeatures *",
            {
                "shaderFloat64": plain.shaderFloat64,
                "shaderInt64": plain.shaderInt64,
                # A kernel that leaves its buffers does no harm. The layer that looks for such
                # kernels takes it for legal.
                "robustBufferAccess": robust,
            },
        )[0]


@contextmanager
def open_instance() -> Iterator[Any]:
    """An instance, destroyed behind the block."""
    handle = create_instance()
    try:
        yield handle
    finally:
        lib.vkDestroyInstance(handle, NULL)


def create_instance() -> Any:
    """A new instance, to be destroyed by the caller.

    Raises
    ------
    NoSuchDeviceError
        If the loader finds no driver.
    SetupError, RemoteError
        If the drivers do not work.
    """
    version = _API_1_2 if is_checking() else _API_1_1
    about = struct("VkApplicationInfo", pApplicationName="tapml", apiVersion=version)
    extensions = [EXTENSION] if is_checking() else []
    info = struct(
        "VkInstanceCreateInfo",
        pApplicationInfo=about,
        enabledExtensionCount=len(extensions),
        ppEnabledExtensionNames=texts(extensions),
    )
    instance = ffi.new("VkInstance *")
    result = lib.vkCreateInstance(info, NULL, instance)
    if result == _NO_DRIVER:
        raise NoSuchDeviceError(f"this machine has no Vulkan driver; {REMEDY}")
    if result < 0 and (broken := broken_choices()):
        raise SetupError(f"{', '.join(broken)}: {NO_JSON}")
    check(result, "Vulkan", "creating an instance")
    return instance[0]


def physical_devices(instance: Any) -> list[PhysicalDevice]:
    """Every device that computes: hardware, then software, SwiftShader last."""
    count = ffi.new("uint32_t *")
    result = lib.vkEnumeratePhysicalDevices(instance, count, NULL)
    if result == _NO_DEVICE:
        return []
    check(result, "Vulkan", "listing devices")
    handles = ffi.new("VkPhysicalDevice[]", count[0])
    check(lib.vkEnumeratePhysicalDevices(instance, count, handles), "Vulkan", "listing devices")
    found = []
    for handle in handles[0 : count[0]]:
        properties = ffi.new("VkPhysicalDeviceProperties *")
        lib.vkGetPhysicalDeviceProperties(handle, properties)
        family = _compute_family(handle)
        if family is not None and properties.apiVersion >= _API_1_1:
            name = ffi.string(properties.deviceName).decode(errors="replace")
            kind = _KINDS.get(properties.deviceType, "gpu")
            # Installing a browser leaves the others' places alone.
            found.append((kind == "cpu", "swiftshader" in name.lower(), handle, *family))
    found.sort(key=lambda each: each[:2])
    return [
        _describe(handle, index, family, bits)
        for index, (_, _, handle, family, bits) in enumerate(found)
    ]


def _compute_family(handle: Any) -> tuple[int, int] | None:
    """The first queue family that computes, and the bits of its timestamps."""
    count = ffi.new("uint32_t *")
    lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, NULL)
    families = ffi.new("VkQueueFamilyProperties[]", count[0])
    lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, families)
    for index in range(count[0]):
        if families[index].queueFlags & _COMPUTE_BIT:
            return index, families[index].timestampValidBits
    return None


def _extensions(handle: Any) -> frozenset[str]:
    count = ffi.new("uint32_t *")
    check(lib.vkEnumerateDeviceExtensionProperties(handle, NULL, count, NULL), "Vulkan", "asking")
    found = ffi.new("VkExtensionProperties[]", count[0])
    check(lib.vkEnumerateDeviceExtensionProperties(handle, NULL, count, found), "Vulkan", "asking")
    return frozenset(ffi.string(found[i].extensionName).decode() for i in range(count[0]))


def _describe(handle: Any, index: int, family: int, bits: int) -> PhysicalDevice:
    sizes = struct("VkPhysicalDeviceSubgroupSizeControlProperties")
    subgroups = struct("VkPhysicalDeviceSubgroupProperties")
    maintenance = struct("VkPhysicalDeviceMaintenance3Properties", pNext=subgroups)
    driver = struct("VkPhysicalDeviceDriverProperties", pNext=maintenance)
    asked = struct("VkPhysicalDeviceProperties2", pNext=maintenance)
    extensions = _extensions(handle)
    if _SUBGROUP_SIZES in extensions:
        subgroups.pNext = sizes
    lib.vkGetPhysicalDeviceProperties2(handle, asked)
    properties = asked.properties
    if properties.apiVersion >= (1 << 22) | (2 << 12) or "VK_KHR_driver_properties" in extensions:
        asked.pNext = driver
        lib.vkGetPhysicalDeviceProperties2(handle, asked)
    limits = properties.limits
    features = Features(handle, properties.apiVersion, extensions)
    name = ffi.string(properties.deviceName).decode(errors="replace").strip()
    kind = _KINDS.get(properties.deviceType, "gpu")
    groups = tuple(limits.maxComputeWorkGroupCount)
    block = tuple(limits.maxComputeWorkGroupSize)
    heap = _largest_heap(handle)
    most = min(maintenance.maxMemoryAllocationSize, heap) // _ALIGNMENT * _ALIGNMENT
    names = features.names
    if subgroups.supportedOperations & _SUBGROUP_OPERATIONS and subgroups.subgroupSize > 1:
        names |= {"subgroups"}
    description = DeviceDescription(
        platform="vulkan",
        index=index,
        name=name or "unnamed device",
        vendor_platform=ffi.string(driver.driverName).decode(errors="replace").strip() or "unnamed",
        device_type=kind_of_device(kind),
        driver_version=f"{_driver_version(properties, driver, name)}; vulkan "
        f"{package_version('vulkan')}",
        limits=Limits(
            max_threads_per_block=limits.maxComputeWorkGroupInvocations,
            max_block=(block[0], block[1], block[2]),
            # What is wider than x is folded into z; indices have 31 bits.
            max_grid=(min(groups[0] * groups[2], _MAX_INDEX), groups[1], groups[2]),
            max_shared_memory_bytes=limits.maxComputeSharedMemorySize,
            max_buffer_bytes=most,
            memory_bytes=heap,
            features=names,
            # Kernels count elements with 31 bits, whatever a device binds.
            max_binding_bytes=min(limits.maxStorageBufferRange, _MAX_INDEX) // 4 * 4,
            max_storage_buffers=limits.maxPerStageDescriptorStorageBuffers,
            offset_alignment=max(4, limits.minStorageBufferOffsetAlignment),
            subgroup_widths=_required_widths(subgroups, sizes, features),
            push_constant_bytes=limits.maxPushConstantsSize,
        ),
        details={
            "api_version": _version(properties.apiVersion),
            "vendor_id": f"{properties.vendorID:#x}",
            "device_id": f"{properties.deviceID:#x}",
            "compiler": "glslang",
            "kernel_time": "timestamp queries" if bits else "wall clock",
        },
    )
    return PhysicalDevice(
        handle, description, family, bits, limits.timestampPeriod,
        max(4, limits.minStorageBufferOffsetAlignment), (groups[0], groups[1], groups[2]), features,
        properties.deviceType == _DISCRETE,
    )  # fmt: skip


def _required_widths(subgroups: Any, sizes: Any, features: Features) -> tuple[int, int]:
    """The device's own width of subgroups, if lanes exchange values and kernels can require it.

    A device that is not asked for a width may leave lanes of each subgroup empty.
    """
    width = int(subgroups.subgroupSize)
    can = (
        subgroups.supportedStages & sizes.requiredSubgroupSizeStages & _COMPUTE_STAGE
        and subgroups.supportedOperations & _SUBGROUP_EXCHANGE == _SUBGROUP_EXCHANGE
        and features.subgroups.subgroupSizeControl
        and features.subgroups.computeFullSubgroups
        and sizes.minSubgroupSize <= width <= sizes.maxSubgroupSize
    )
    return (width, width) if can else (0, 0)


def _largest_heap(handle: Any) -> int:
    memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
    lib.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    local = [heap.size for heap in heaps if heap.flags & _DEVICE_LOCAL]
    return int(max(local or [heap.size for heap in heaps]))


def _driver_version(properties: Any, driver: Any, name: str) -> str:
    stated = ffi.string(driver.driverInfo).decode(errors="replace").strip()
    if not stated and "swiftshader" in name.lower():
        stated = swiftshader_version()
    return stated or f"driver {properties.driverVersion:#x}"


def _version(packed: int) -> str:
    return f"{(packed >> 22) & 0x7F}.{(packed >> 12) & 0x3FF}.{packed & 0xFFF}"
