"""The Vulkan platform: devices of every installed driver, through the package ``vulkan``.

Commands are recorded and handed on together, in order; :meth:`VulkanDriver.read`,
:meth:`VulkanDriver.finish` and whatever else needs a result hand them on and wait. Memory that this
process can reach is written and read where it lies, after the work that uses it.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, finalize

from tapml_targets.description import find_again
from tapml_targets.driver import BoundLaunch, DeviceDescription, KernelArgument
from tapml_targets.errors import DeviceLostError, NoSuchDeviceError, SetupError
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.memory_commands import MemoryCommands
from tapml_targets.module_check import check_module
from tapml_targets.vulkan.discovery import REMEDY, import_vulkan

if TYPE_CHECKING:
    from tapml_targets.vulkan.instance import PhysicalDevice
    from tapml_targets.vulkan.launching import LaunchSequence
    from tapml_targets.vulkan.memory import DeviceBuffer
    from tapml_targets.vulkan.programs import LoadedKernel

__all__ = ["REMEDY", "MappedVulkanDriver", "VulkanDriver", "list_devices", "open_device"]

# Writes up to this size are part of the commands, so that nobody waits for the device.
_INLINE_BYTES: Final = 64 << 10
_STAGING_BYTES: Final = 4 << 20
_WORD: Final = 4
_FEW: Final = 256


def list_devices() -> list[DeviceDescription]:
    """All Vulkan devices of this machine that compute: hardware first.

    Raises
    ------
    SetupError
        If the package ``vulkan`` or the Vulkan loader is not installed.
    """
    import_vulkan()
    from tapml_targets.vulkan.instance import open_instance, physical_devices

    try:
        with open_instance() as instance:
            return [each.description for each in physical_devices(instance)]
    except NoSuchDeviceError:
        return []


def open_device(description: DeviceDescription, *, staged: bool | None = None) -> VulkanDriver:
    """Open the device that `description` names by index, name and driver.

    Parameters
    ----------
    description
        As :func:`list_devices` gives it.
    staged
        Whether its memory is taken for one that this process cannot reach; None for what it is.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    SetupError
        If it cannot be opened.
    """
    import_vulkan()
    from tapml_targets.vulkan.api import NULL, lib
    from tapml_targets.vulkan.instance import create_instance, physical_devices

    instance = create_instance()
    try:
        listed = physical_devices(instance)
        device, _ = find_again(description, listed, lambda each, _: each.description)
        opened = _Opened(instance, device, staged=staged)
    except BaseException:
        lib.vkDestroyInstance(instance, NULL)
        raise
    return (VulkanDriver if opened.memory.staged else MappedVulkanDriver)(opened)


class _Opened:
    """An open device with its queue and memory."""

    def __init__(self, instance: Any, device: PhysicalDevice, *, staged: bool | None) -> None:
        from tapml_targets.vulkan.api import NULL, array, created, ffi, lib, struct, texts
        from tapml_targets.vulkan.launching import Launcher
        from tapml_targets.vulkan.memory import Memory
        from tapml_targets.vulkan.queue import Queue

        self.instance = instance
        self.physical = device
        self.description = device.description
        name = device.description.name
        queues = struct(
            "VkDeviceQueueCreateInfo",
            queueFamilyIndex=device.family,
            queueCount=1,
            pQueuePriorities=ffi.new("float[]", [1.0]),
        )
        extensions = device.features.extensions
        info = struct(
            "VkDeviceCreateInfo",
            pNext=device.features.all,
            queueCreateInfoCount=1,
            pQueueCreateInfos=array("VkDeviceQueueCreateInfo", [queues]),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=texts(extensions),
        )
        self.device = created(lib.vkCreateDevice, "VkDevice", name, "opening", device.handle, info)
        try:
            self.queue = Queue(self.device, device.family, name)
            self.memory = Memory(
                self.device, device.handle, name, staged=staged, discrete=device.discrete
            )
            self.launcher = Launcher(
                self.memory,
                self.queue,
                alignment=device.alignment,
                groups=device.groups,
                most_bytes=self.description.limits.max_binding_bytes,
                name=name,
            )
        except BaseException:
            lib.vkDestroyDevice(self.device, NULL)
            raise


class VulkanDriver(MemoryCommands["DeviceBuffer"]):
    """One open Vulkan device; see :class:`tapml_targets.driver.Driver`."""

    dialects: Mapping[str, ModuleKind] = MappingProxyType({"glsl": "source", "spirv": "portable"})

    def __init__(self, opened: _Opened) -> None:
        self.description = opened.description
        self._opened = opened
        self._queue = opened.queue
        self._memory = opened.memory
        self._launcher = opened.launcher
        self._device = opened.device
        self._timer: Any = None
        self._stop_clock: Callable[[], Callable[[], int]] | None = None
        self._staging: DeviceBuffer | None = None
        # What destroys each thing that is still there.
        self._endings: set[finalize[Any, Any]] = set()
        self._prune_at = _FEW
        self._closed = False
        _OPEN.add(self)

    def _allocate(self, nbytes: int) -> DeviceBuffer:
        try:
            buffer = self._memory.allocate(nbytes)
        except SetupError:
            # What was given back may still be waiting for its work.
            self.finish()
            buffer = self._memory.allocate(nbytes)
        self._destroyed_with(buffer, partial(self._memory.release, buffer.handle, buffer.memory))
        return buffer

    def free(self, buffer: DeviceBuffer) -> None:
        """See :meth:`Driver.free`."""
        if buffer.ending is not None:
            buffer.ending()
            self._endings.discard(buffer.ending)
        buffer.release()

    def _write(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        idle = self._queue.is_done(buffer.last_use)
        words = byte_offset % _WORD == 0 == len(data) % _WORD
        if words and len(data) <= _INLINE_BYTES and not (idle and buffer.mapped is not None):
            self._write_inline(buffer, byte_offset, data)
        elif buffer.mapped is not None:
            self._queue.wait(buffer.last_use)
            buffer.bytes_at(byte_offset, len(data))[:] = data
        else:
            self._write_staged(buffer, byte_offset, data)

    def _read_into(self, buffer: DeviceBuffer, byte_offset: int, target: memoryview) -> None:
        nbytes = len(target)
        if not nbytes:
            return
        if buffer.mapped is not None:
            self._queue.wait(buffer.last_use)
            target[:] = buffer.bytes_at(byte_offset, nbytes)
            return
        from tapml_targets.vulkan.launching import copy_commands

        staging = self._staging_buffer()
        for start in range(0, nbytes, _STAGING_BYTES):
            size = min(_STAGING_BYTES, nbytes - start)
            commands = self._queue.record()
            copy_commands(commands, buffer, byte_offset + start, staging, 0, size)
            self._queue.barrier(commands)
            self._queue.wait(self._queue.number)
            target[start : start + size] = staging.bytes_at(0, size)

    def _fill(
        self, buffer: DeviceBuffer, byte_offset: int, nbytes: int, pattern: bytes, phase: int = 0
    ) -> None:
        start = -(-byte_offset // _WORD) * _WORD
        end = (byte_offset + nbytes) // _WORD * _WORD
        if _WORD % len(pattern) or end <= start:
            super()._fill(buffer, byte_offset, nbytes, pattern, phase)
            return
        before, behind = start - byte_offset, byte_offset + nbytes - end
        super()._fill(buffer, byte_offset, before, pattern, phase)
        self._fill_words(buffer, start, end - start, pattern, phase + before)
        super()._fill(buffer, end, behind, pattern, phase + end - byte_offset)

    def _copy(
        self,
        source: DeviceBuffer,
        source_offset: int,
        target: DeviceBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        from tapml_targets.vulkan.launching import copy_commands

        commands = self._queue.record()
        copy_commands(commands, source, source_offset, target, target_offset, nbytes)
        self._queue.barrier(commands)
        source.last_use = target.last_use = self._queue.number

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """See :meth:`Driver.load`."""
        from tapml_targets.vulkan.programs import build_kernel, destroy_kernel
        from tapml_targets.vulkan.spirv import spirv_of

        check_module(module, self.dialects, self.description.name)
        loaded = {}
        for kernel in kernels:
            code = spirv_of(module, kernel)
            built = build_kernel(self._device, code, kernel, self.description)
            self._destroyed_with(built, partial(destroy_kernel, self._device, *built.handles))
            loaded[kernel.name] = built
        return loaded

    def launch(
        self,
        kernel: LoadedKernel,
        arguments: Sequence[KernelArgument],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> None:
        """See :meth:`Driver.launch`."""
        launch = BoundLaunch(kernel, tuple(arguments), grid, block)
        if self._timer is None or 0 in launch.threads:
            self._launcher.launch(launch)
        else:
            self._launcher.launch(launch, self._timer.before, self._timer.after)

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """See :meth:`Driver.bind`."""
        from tapml_targets.vulkan.launching import LaunchSequence

        return LaunchSequence(launches)

    def launch_all(self, sequence: LaunchSequence) -> None:
        """See :meth:`Driver.launch_all`."""
        from tapml_targets.vulkan.launching import MOST_RECORDED

        if self._timer is not None or len(sequence.launches) > MOST_RECORDED:
            for kernel, arguments, grid, block, _ in sequence.launches:
                self.launch(kernel, arguments, grid, block)
            return
        if sequence.commands is None:
            self._destroyed_with(sequence, self._launcher.record(sequence))
        self._queue.submit_recorded(sequence.commands)
        number = self._queue.latest
        for buffer in sequence.buffers:
            buffer.last_use = number

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`."""
        from tapml_targets.vulkan.timing import Timer, clock

        device = self._opened.physical
        if device.timestamp_bits:
            self._timer = Timer(
                self._device,
                device.timestamp_bits,
                device.timestamp_nanoseconds,
                self.description.name,
            )
        else:
            self._stop_clock = clock(self.finish)

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        if self._stop_clock is not None:
            stop, self._stop_clock = self._stop_clock, None
            return stop()
        timer, self._timer = self._timer, None
        if timer is None:
            return lambda: 0
        self._destroyed_with(timer, timer.destroyer())
        elapsed: Callable[[], int] = timer.elapsed
        return elapsed

    def flush(self) -> None:
        """See :meth:`tapml_targets.driver.BatchesCommands.flush`."""
        self._queue.submit()

    def finish(self) -> None:
        """See :meth:`Driver.finish`."""
        self._queue.finish()

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        if self._closed:
            return
        self._closed = True
        _OPEN.discard(self)
        from tapml_targets.vulkan.api import NULL, lib

        try:
            self.finish()
        finally:
            with suppress(DeviceLostError):
                for ending in self._endings:
                    ending()
            self._endings.clear()
            self._queue.close()
            lib.vkDestroyDevice(self._device, NULL)
            lib.vkDestroyInstance(self._opened.instance, NULL)

    def _destroyed_with(self, owner: Any, destroy: Callable[[], None]) -> None:
        """Have `destroy` called once `owner` is gone and the work that may use it has ended."""
        queue = self._queue
        ending = finalize(owner, lambda: queue.when_ended(queue.latest, destroy))
        ending.atexit = False
        if hasattr(owner, "ending"):
            owner.ending = ending
        self._endings.add(ending)
        if len(self._endings) > self._prune_at:
            self._endings = {each for each in self._endings if each.alive}
            self._prune_at = 2 * len(self._endings) + _FEW

    def _write_inline(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        from tapml_targets.vulkan.api import ffi, lib

        commands = self._queue.record()
        held = ffi.from_buffer(bytes(data))
        lib.vkCmdUpdateBuffer(commands, buffer.handle, byte_offset, len(data), held)
        self._queue.barrier(commands)
        buffer.last_use = self._queue.number

    def _write_staged(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        from tapml_targets.vulkan.launching import copy_commands

        staging = self._staging_buffer()
        for start in range(0, len(data), _STAGING_BYTES):
            part = data[start : start + _STAGING_BYTES]
            self._queue.wait(staging.last_use)
            staging.bytes_at(0, len(part))[:] = part
            commands = self._queue.record()
            copy_commands(commands, staging, 0, buffer, byte_offset + start, len(part))
            self._queue.barrier(commands)
            staging.last_use = buffer.last_use = self._queue.number
            self._queue.submit()

    def _staging_buffer(self) -> DeviceBuffer:
        if self._staging is None:
            self._staging = staging = self._memory.allocate_staging(_STAGING_BYTES)
            release = partial(self._memory.release, staging.handle, staging.memory)
            self._destroyed_with(staging, release)
        self._queue.wait(self._staging.last_use)
        return self._staging

    def _fill_words(
        self, buffer: DeviceBuffer, start: int, nbytes: int, pattern: bytes, phase: int
    ) -> None:
        from tapml_targets.vulkan.api import lib

        word = (pattern * (2 * _WORD))[phase % len(pattern) :][:_WORD]
        commands = self._queue.record()
        value = int.from_bytes(word, "little")
        lib.vkCmdFillBuffer(commands, buffer.handle, start, nbytes, value)
        self._queue.barrier(commands)
        buffer.last_use = self._queue.number


class MappedVulkanDriver(VulkanDriver):
    """An open device whose memory this process reaches."""

    def show(self, buffer: DeviceBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`tapml_targets.driver.HostReadable.show`."""
        buffer.check(byte_offset, nbytes, "show")
        self._queue.wait(buffer.last_use)
        return buffer.bytes_at(byte_offset, nbytes).toreadonly()


_OPEN: Final[WeakSet[VulkanDriver]] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Destroy devices while their drivers are still there."""
    for driver in list(_OPEN):
        with suppress(Exception):
            driver.close()
