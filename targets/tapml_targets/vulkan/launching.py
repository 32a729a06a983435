"""Launches as commands: windows become descriptors, numbers push constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tapml_targets.driver import BoundLaunch, BufferUse, KernelArgument, ScalarUse
from tapml_targets.errors import InputError, LimitExceededError
from tapml_targets.vulkan.api import NULL, array, ffi, lib, struct
from tapml_targets.vulkan.memory import DeviceBuffer, Memory
from tapml_targets.vulkan.programs import LoadedKernel
from tapml_targets.vulkan.queue import Queue, allocate_set, begin_commands, create_pool
from tapml_targets.vulkan.reflection import pack

MOST_RECORDED: Final = 4096
"""A longer sequence is recorded again for each run."""

MOST_TOGETHER: Final = 32
"""Launches between two barriers at most."""

_COMPUTE_BIND_POINT: Final = 1
_COMPUTE_STAGE: Final = 0x20
_STORAGE_BUFFER: Final = 7
_WORD: Final = 4

MakeSet = Callable[[Any, int], Any]


class LaunchSequence:
    """Launches that follow each other; from the first run on they are recorded commands."""

    __slots__ = ("__weakref__", "buffers", "commands", "launches")

    def __init__(self, launches: Sequence[BoundLaunch]) -> None:
        self.launches = tuple(launches)
        self.buffers: tuple[DeviceBuffer, ...] = ()
        self.commands: Any = None


@dataclass
class Windows:
    """What the arguments of a launch are on the device.

    `copied` has a window that is not aligned, its stand-in, and how many bytes are copied back: of
    one that is written those that are the launch's, which may end within a word.
    """

    places: list[tuple[DeviceBuffer, int, int]] = field(default_factory=list)
    copied: list[tuple[DeviceBuffer, int, int, DeviceBuffer, int]] = field(default_factory=list)


class Together:
    """The launches since the last barrier, which a device may run at once."""

    def __init__(self) -> None:
        self._launches = 0
        self._windows: dict[int, list[tuple[int, int, bool]]] = {}

    def takes(self, windows: Windows, read_only: Sequence[bool]) -> bool:
        """Whether a launch needs no barrier before it; one that does is the first of the next ones.

        It needs none where it writes nothing that they read or write, and reads nothing that they
        write. One that copies windows has a barrier on both sides.
        """
        taken = [
            (id(buffer), offset, offset + size, not reads)
            for (buffer, offset, size), reads in zip(windows.places, read_only, strict=True)
        ]
        fits = self._launches < MOST_TOGETHER and not windows.copied
        fits = fits and not any(
            start < other_end and other_start < end and (writes or other_writes)
            for key, start, end, writes in taken
            for other_start, other_end, other_writes in self._windows.get(key, ())
        )
        if not fits:
            self._launches = 0
            self._windows.clear()
        if not windows.copied:
            self._launches += 1
            for key, start, end, writes in taken:
                self._windows.setdefault(key, []).append((start, end, writes))
        return fits


class Launcher:
    """Encodes launches for one device.

    Parameters
    ----------
    memory, queue
        The device's.
    alignment
        What a window's start must be a multiple of. A window elsewhere gets an aligned stand-in
        that is copied to and fro.
    groups
        Workgroups that one dispatch takes along each axis.
    most_bytes
        Of a window.
    name
        The device's, for errors.
    """

    def __init__(
        self,
        memory: Memory,
        queue: Queue,
        *,
        alignment: int,
        groups: tuple[int, int, int],
        most_bytes: int,
        name: str,
    ) -> None:
        self._memory = memory
        self._queue = queue
        self._alignment = alignment
        self._groups = groups
        self._most_bytes = most_bytes
        self._name = name

    def launch(
        self,
        launch: BoundLaunch,
        before: Callable[[Any], None] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        """Record a launch behind what is recorded; `before` and `after` add commands around it."""
        uses, values = self._split(launch)
        commands = self._queue.record(len(uses))
        stand_ins: list[DeviceBuffer] = []
        try:
            windows = self._windows(launch, uses, stand_ins)
            if before is not None:
                before(commands)
            self._encode(commands, launch, windows, values, self._queue.descriptor_set)
            self._queue.barrier(commands)
            if after is not None:
                after(commands)
        finally:
            number = self._queue.number
            for each in stand_ins:
                self._queue.when_ended(
                    number, partial(self._memory.release, each.handle, each.memory)
                )
        for use in uses:
            use.buffer.last_use = number

    def record(self, sequence: LaunchSequence) -> Callable[[], None]:
        """Record a sequence once; the result destroys what was made for it."""
        split = [self._split(launch) for launch in sequence.launches]
        counts = [len(uses) for uses, _ in split]
        device = self._queue.device
        pool = create_pool(device, len(counts), sum(counts), self._name)
        commands = self._queue.allocate_commands()
        stand_ins: list[DeviceBuffer] = []

        def destroy() -> None:
            self._queue.free_commands(commands)
            lib.vkDestroyDescriptorPool(device, pool, NULL)
            for each in stand_ins:
                self._memory.release(each.handle, each.memory)

        def make_set(layout: Any, _: int) -> Any:
            return allocate_set(device, pool, layout, self._name)

        try:
            begin_commands(commands, self._name, again=True)
            together = Together()
            for launch, (uses, values) in zip(sequence.launches, split, strict=True):
                windows = self._windows(launch, uses, stand_ins)
                if 0 not in launch.threads and not together.takes(
                    windows, launch.kernel.interface.read_only
                ):
                    self._queue.barrier(commands)
                self._encode(commands, launch, windows, values, make_set)
                if windows.copied:
                    self._queue.barrier(commands)
            self._queue.end_commands(commands, "recording a sequence")
        except BaseException:
            destroy()
            raise
        sequence.commands = commands
        found = {id(use.buffer): use.buffer for uses, _ in split for use in uses}
        sequence.buffers = tuple(found.values())
        return destroy

    def _split(self, launch: BoundLaunch) -> tuple[list[BufferUse], list[int | float]]:
        kernel: LoadedKernel = launch.kernel
        uses: list[BufferUse] = []
        values: list[int | float] = []
        for argument in launch.arguments:
            if isinstance(argument, BufferUse) and not values:
                uses.append(argument)
            elif isinstance(argument, ScalarUse):
                values.append(argument.value)
            else:
                raise InputError(
                    f"kernel {kernel.name!r}: Vulkan kernels take buffers, then numbers, not "
                    f"{_described(launch.arguments)}"
                )
        takes = kernel.interface
        if (len(uses), len(values)) != (len(takes.read_only), len(takes.scalars)):
            raise InputError(
                f"kernel {kernel.name!r} takes {len(takes.read_only)} buffers and "
                f"{len(takes.scalars)} numbers, got {len(uses)} and {len(values)}"
            )
        if launch.block != takes.block and 0 not in launch.threads:
            raise InputError(
                f"kernel {kernel.name!r} is written for blocks of {takes.block} threads, got "
                f"{launch.block}"
            )
        return uses, values

    def _windows(
        self, launch: BoundLaunch, uses: Sequence[BufferUse], stand_ins: list[DeviceBuffer]
    ) -> Windows:
        windows = Windows()
        by_window: dict[tuple[int, int, int], int] = {}
        for place, use in enumerate(uses):
            buffer: DeviceBuffer = use.buffer
            buffer.check(use.byte_offset, use.nbytes, "launch")
            if use.nbytes > self._most_bytes:
                raise LimitExceededError(
                    f"kernel {launch.kernel.name!r} is given {use.nbytes} bytes of a buffer; "
                    f"{self._name} takes at most {self._most_bytes}"
                )
            offset = use.byte_offset if use.nbytes else 0
            room = buffer.size - offset
            wanted = -(-(use.nbytes + use.behind) // _WORD) * _WORD
            size = min(room, max(wanted, _WORD))
            if offset % self._alignment == 0:
                windows.places.append((buffer, offset, size))
                continue
            read_only = launch.kernel.interface.read_only[place]
            written = 0 if read_only else min(size, use.nbytes + use.behind)
            key = id(buffer), offset, size
            if key not in by_window:
                self._check_overlap(launch, use, uses)
                stand_in = self._memory.allocate(size)
                stand_ins.append(stand_in)
                by_window[key] = len(windows.copied)
                windows.copied.append((buffer, offset, size, stand_in, written))
            copy = windows.copied[by_window[key]]
            windows.copied[by_window[key]] = (*copy[:4], max(copy[4], written))
            windows.places.append((copy[3], 0, size))
        return windows

    def _check_overlap(
        self, launch: BoundLaunch, use: BufferUse, uses: Sequence[BufferUse]
    ) -> None:
        end = use.byte_offset + use.nbytes
        for other in uses:
            same = (other.byte_offset, other.nbytes) == (use.byte_offset, use.nbytes)
            if (
                other.buffer is use.buffer
                and not same
                and other.byte_offset < end
                and use.byte_offset < other.byte_offset + other.nbytes
            ):
                raise InputError(
                    f"kernel {launch.kernel.name!r}: two arguments overlap and one starts at byte "
                    f"{use.byte_offset}; on this device overlapping windows must start at "
                    f"multiples of {self._alignment}"
                )

    def _encode(
        self,
        commands: Any,
        launch: BoundLaunch,
        windows: Windows,
        values: Sequence[int | float],
        make_set: MakeSet,
    ) -> None:
        if 0 in launch.threads:
            return
        kernel: LoadedKernel = launch.kernel
        extents = self._folded(launch)
        for buffer, offset, size, stand_in, _ in windows.copied:
            copy_commands(commands, buffer, offset, stand_in, 0, size)
        if windows.copied:
            self._queue.barrier(commands)
        count = len(windows.places)
        if count:
            bound = make_set(kernel.set_layout, count)
            self._write_set(bound, windows.places)
            sets = array("VkDescriptorSet", [bound])
            lib.vkCmdBindDescriptorSets(
                commands, _COMPUTE_BIND_POINT, kernel.layout, 0, 1, sets, 0, NULL
            )
        lib.vkCmdBindPipeline(commands, _COMPUTE_BIND_POINT, kernel.pipeline)
        if kernel.interface.pushed_bytes:
            data = pack(kernel.interface, list(values), launch.grid[0], kernel.name)
            lib.vkCmdPushConstants(
                commands, kernel.layout, _COMPUTE_STAGE, 0, len(data), ffi.from_buffer(data)
            )
        lib.vkCmdDispatch(commands, *extents)
        back = [each for each in windows.copied if each[4]]
        if back:
            self._queue.barrier(commands)
        for buffer, offset, _, stand_in, written in back:
            copy_commands(commands, stand_in, 0, buffer, offset, written)

    def _write_set(self, bound: Any, places: Sequence[tuple[DeviceBuffer, int, int]]) -> None:
        infos = ffi.new("VkDescriptorBufferInfo[]", len(places))
        for info, (buffer, offset, size) in zip(infos, places, strict=True):
            info.buffer, info.offset, info.range = buffer.handle, offset, size
        # One write continues over the bindings that follow the first.
        write = struct(
            "VkWriteDescriptorSet", dstSet=bound, descriptorCount=len(places),
            descriptorType=_STORAGE_BUFFER, pBufferInfo=infos,
        )  # fmt: skip
        lib.vkUpdateDescriptorSets(self._queue.device, 1, write, 0, NULL)

    def _folded(self, launch: BoundLaunch) -> tuple[int, int, int]:
        """The grid as it is dispatched: what is too wide continues along z."""
        x, y, z = launch.grid
        if x > self._groups[0] and z == 1 and launch.kernel.interface.grid is not None:
            z = -(-x // self._groups[0])
            x = -(-x // z)
        if any(n > most for n, most in zip((x, y, z), self._groups, strict=True)):
            raise LimitExceededError(
                f"kernel {launch.kernel.name!r} needs a grid of {launch.grid}; {self._name} allows "
                f"{self._groups}"
            )
        return x, y, z


def copy_commands(
    commands: Any, source: DeviceBuffer, at: int, target: DeviceBuffer, to: int, nbytes: int
) -> None:
    """Record a copy on the device."""
    region = struct("VkBufferCopy", srcOffset=at, dstOffset=to, size=nbytes)
    lib.vkCmdCopyBuffer(commands, source.handle, target.handle, 1, region)


def _described(arguments: Sequence[KernelArgument]) -> str:
    return ", ".join(type(each).__name__ for each in arguments)
