"""Device memory: buffers, and where a buffer's bytes can be reached by this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tapml_targets.errors import SetupError
from tapml_targets.memory_commands import DeviceMemory
from tapml_targets.vulkan.api import NULL, WHOLE_SIZE, check, created, ffi, lib, struct
from tapml_targets.vulkan.naming import BUFFER, give_name
from tapml_targets.vulkan_loader.validation import is_checking
from tapml_targets.vulkan_loader.validation_log import buffer_name

_ROUNDED: Final = 16
# Storage buffer, source and target of copies.
_USAGE: Final = 0x20 | 0x1 | 0x2
_DEVICE_LOCAL, _HOST_VISIBLE, _HOST_COHERENT, _HOST_CACHED = 1, 2, 4, 8
_REACHED: Final = _HOST_VISIBLE | _HOST_COHERENT


class DeviceBuffer(DeviceMemory):
    """Device memory.

    Attributes
    ----------
    size
        Bytes that kernels can be given: some more, so that the last word is whole.
    mapped
        A pointer to the bytes; None where this process cannot reach them.
    last_use
        Number of the submission that uses it last.
    ending
        Gives the memory back; None once that has been done.
    """

    __slots__ = (
        "__weakref__",
        "ending",
        "handle",
        "last_use",
        "mapped",
        "memory",
        "size",
    )

    def __init__(self, handle: Any, memory: Any, mapped: Any, nbytes: int, size: int) -> None:
        super().__init__(nbytes)
        self.handle = handle
        self.memory = memory
        self.mapped = mapped
        self.size = size
        self.last_use = 0
        self.ending: Callable[[], object] | None = None

    def release(self) -> None:
        """Note that the memory has been given back."""
        super().release()
        self.size = 0
        self.mapped = self.ending = None

    def bytes_at(self, byte_offset: int, nbytes: int) -> memoryview:
        """A window on mapped memory."""
        return memoryview(ffi.buffer(self.mapped + byte_offset, nbytes))


class Memory:
    """Allocates the memory of one device.

    Parameters
    ----------
    device
        The open device.
    physical
        What it was opened from.
    name
        Its name, for errors.
    staged
        Whether buffers lie where this process cannot reach them; None for what suits the device.
    discrete
        Whether the device has memory of its own.
    """

    def __init__(
        self, device: Any, physical: Any, name: str, *, staged: bool | None, discrete: bool
    ) -> None:
        self._device = device
        self._name = name
        found = ffi.new("VkPhysicalDeviceMemoryProperties *")
        lib.vkGetPhysicalDeviceMemoryProperties(physical, found)
        self._types = [
            int(found.memoryTypes[index].propertyFlags) for index in range(found.memoryTypeCount)
        ]
        reachable = any(
            flags & _DEVICE_LOCAL and flags & _REACHED == _REACHED for flags in self._types
        )
        self._allocated = 0
        # A window of a GPU's own memory is written fast enough, and read a thousand times slower.
        self.staged = (discrete or not reachable) if staged is None else staged

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """A buffer for kernels."""
        if self.staged:
            buffer = self._allocate(nbytes, (_DEVICE_LOCAL, 0), mapped=False)
        else:
            wanted = (_REACHED | _DEVICE_LOCAL | _HOST_CACHED, _REACHED | _DEVICE_LOCAL, _REACHED)
            buffer = self._allocate(nbytes, wanted, mapped=True)
        if is_checking():
            self._allocated += 1
            give_name(self._device, BUFFER, buffer.handle, buffer_name(self._allocated))
        return buffer

    def allocate_staging(self, nbytes: int) -> DeviceBuffer:
        """A buffer that this process reaches, to copy from and to."""
        return self._allocate(nbytes, (_REACHED | _HOST_CACHED, _REACHED), mapped=True)

    def release(self, handle: Any, memory: Any) -> None:
        """Destroy a buffer, whose work has ended."""
        lib.vkDestroyBuffer(self._device, handle, NULL)
        lib.vkFreeMemory(self._device, memory, NULL)

    def _allocate(self, nbytes: int, wanted: tuple[int, ...], *, mapped: bool) -> DeviceBuffer:
        size = max(_ROUNDED, -(-nbytes // _ROUNDED) * _ROUNDED)
        what = f"allocating {nbytes} bytes"
        info = struct("VkBufferCreateInfo", size=size, usage=_USAGE)
        handle = created(lib.vkCreateBuffer, "VkBuffer", self._name, what, self._device, info)
        memory = pointer = None
        try:
            needs = ffi.new("VkMemoryRequirements *")
            lib.vkGetBufferMemoryRequirements(self._device, handle, needs)
            memory = created(
                lib.vkAllocateMemory, "VkDeviceMemory", self._name, what, self._device,
                struct(
                    "VkMemoryAllocateInfo",
                    allocationSize=needs.size,
                    memoryTypeIndex=self._type(needs.memoryTypeBits, wanted),
                ),
            )  # fmt: skip
            check(lib.vkBindBufferMemory(self._device, handle, memory, 0), self._name, what)
            if mapped:
                place = ffi.new("void **")
                result = lib.vkMapMemory(self._device, memory, 0, WHOLE_SIZE, 0, place)
                check(result, self._name, what)
                pointer = ffi.cast("uint8_t *", place[0])
        except BaseException:
            lib.vkDestroyBuffer(self._device, handle, NULL)
            if memory is not None:
                lib.vkFreeMemory(self._device, memory, NULL)
            raise
        return DeviceBuffer(handle, memory, pointer, nbytes, size)

    def _type(self, allowed: int, wanted: tuple[int, ...]) -> int:
        for flags in wanted:
            for index, have in enumerate(self._types):
                if allowed >> index & 1 and have & flags == flags:
                    return index
        raise SetupError(f"{self._name} has no memory for buffers that this process can use")
