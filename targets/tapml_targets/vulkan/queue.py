"""Work handed to a device: commands recorded one after the other, submitted together, in order.

Every submission has a number. What it uses is given back once its fence says that it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tapml_targets.vulkan.api import NULL, array, check, created, ffi, lib, struct

MOST_SETS: Final = 256
MOST_DESCRIPTORS: Final = 4096
_ONE_TIME, _SIMULTANEOUS = 1, 4
_RESET_BUFFERS: Final = 2
_STORAGE_BUFFER: Final = 7
# All commands; and the host.
_COMMANDS: Final = 0x10000
_HOST: Final = 0x4000
_WRITES: Final = 0x10000
_READS_AND_WRITES: Final = 0x8000 | 0x10000
_HOST_READS_AND_WRITES: Final = 0x2000 | 0x4000
_FOREVER: Final = (1 << 64) - 1
_TIMEOUT: Final = 2


@dataclass
class _Recording:
    """Commands that wait to be submitted, and what they use."""

    commands: Any
    fence: Any
    pool: Any
    sets: int = 0
    descriptors: int = 0


@dataclass(frozen=True)
class _Submission:
    number: int
    fence: Any
    recording: _Recording | None


class Queue:
    """The queue of one device.

    Attributes
    ----------
    device
        The open device.
    """

    def __init__(self, device: Any, family: int, name: str) -> None:
        self.device = device
        self._name = name
        handle = ffi.new("VkQueue *")
        lib.vkGetDeviceQueue(device, family, 0, handle)
        self._queue = handle[0]
        info = struct("VkCommandPoolCreateInfo", flags=_RESET_BUFFERS, queueFamilyIndex=family)
        self._pool = created(
            lib.vkCreateCommandPool, "VkCommandPool", name, "opening", device, info
        )
        self._submitted = 0
        self._ended = 0
        self._recording: _Recording | None = None
        self._running: deque[_Submission] = deque()
        self._spare: list[_Recording] = []
        self._fences: list[Any] = []
        self._later: deque[tuple[int, Callable[[], None]]] = deque()
        self._barrier = struct(
            "VkMemoryBarrier", srcAccessMask=_WRITES, dstAccessMask=_READS_AND_WRITES
        )
        self._last_barrier = struct(
            "VkMemoryBarrier",
            srcAccessMask=_WRITES,
            dstAccessMask=_READS_AND_WRITES | _HOST_READS_AND_WRITES,
        )

    @property
    def number(self) -> int:
        """Of the submission that what is recorded now belongs to."""
        return self._submitted + 1

    @property
    def latest(self) -> int:
        """Of the last submission, what is recorded now included."""
        return self._submitted + (self._recording is not None)

    def record(self, descriptors: int = 0) -> Any:
        """The commands to add to, with room for one more set of so many descriptors."""
        recording = self._recording
        if (
            recording is not None
            and descriptors
            and (
                recording.sets >= MOST_SETS
                or recording.descriptors + descriptors > MOST_DESCRIPTORS
            )
        ):
            self.submit()
            recording = None
        if recording is None:
            recording = self._recording = self._spare.pop() if self._spare else self._made()
            begin_commands(recording.commands, self._name, again=False)
        return recording.commands

    def descriptor_set(self, layout: Any, descriptors: int) -> Any:
        """A set that lives as long as what is recorded."""
        recording = self._recording
        if recording is None:
            raise RuntimeError("nothing is recorded")
        recording.sets += 1
        recording.descriptors += descriptors
        return allocate_set(self.device, recording.pool, layout, self._name)

    def barrier(self, commands: Any) -> None:
        """Have the commands that follow see what came before."""
        lib.vkCmdPipelineBarrier(
            commands, _COMMANDS, _COMMANDS, 0, 1, self._barrier, 0, NULL, 0, NULL
        )

    def end_commands(self, commands: Any, what: str) -> None:
        """End what is recorded; later submissions, and this process, see all of it.

        Only this barrier is for the process: what one kernel hands to the next may stay in caches.
        """
        lib.vkCmdPipelineBarrier(
            commands, _COMMANDS, _COMMANDS | _HOST, 0, 1, self._last_barrier, 0, NULL, 0, NULL
        )
        check(lib.vkEndCommandBuffer(commands), self._name, what)

    def submit(self) -> None:
        """Hand on what is recorded."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        self.end_commands(recording.commands, "recording")
        self._submit(recording.commands, recording.fence, recording)

    def submit_recorded(self, commands: Any) -> None:
        """Hand on what is recorded, and behind it commands that were recorded before."""
        self.submit()
        fence = self._fences.pop() if self._fences else self._made_fence()
        self._submit(commands, fence, None)

    def _submit(self, commands: Any, fence: Any, recording: _Recording | None) -> None:
        info = struct(
            "VkSubmitInfo",
            commandBufferCount=1,
            pCommandBuffers=array("VkCommandBuffer", [commands]),
        )
        check(lib.vkQueueSubmit(self._queue, 1, info, fence), self._name, "handing work on")
        self._submitted += 1
        self._running.append(_Submission(self._submitted, fence, recording))

    def is_done(self, number: int) -> bool:
        """Whether a submission has ended."""
        if number > self._ended:
            self._retire()
        return number <= self._ended

    def wait(self, number: int) -> None:
        """Wait until a submission has ended, handing it on if need be."""
        if number <= self._ended:
            return
        if number > self._submitted:
            self.submit()
        for running in list(self._running):
            if running.number > number:
                break
            fences = array("VkFence", [running.fence])
            result = lib.vkWaitForFences(self.device, 1, fences, 1, _FOREVER)
            check(result, self._name, "the work before this point")
        self._retire()

    def finish(self) -> None:
        """Wait for everything."""
        self.wait(self.latest)

    def when_ended(self, number: int, action: Callable[[], None]) -> None:
        """Do something once a submission has ended. It may be called at any time."""
        self._later.append((number, action))

    def close(self) -> None:
        """Destroy everything; nothing runs any more."""
        self._retire()
        while self._later:
            self._later.popleft()[1]()
        recordings = [*self._spare, *(r.recording for r in self._running if r.recording)]
        if self._recording is not None:
            recordings.append(self._recording)
        for recording in recordings:
            lib.vkDestroyDescriptorPool(self.device, recording.pool, NULL)
            lib.vkDestroyFence(self.device, recording.fence, NULL)
        for fence in [*self._fences, *(r.fence for r in self._running if not r.recording)]:
            lib.vkDestroyFence(self.device, fence, NULL)
        self._running.clear()
        self._spare.clear()
        self._fences.clear()
        self._recording = None
        lib.vkDestroyCommandPool(self.device, self._pool, NULL)

    def allocate_commands(self) -> Any:
        """New commands, to be given back with :meth:`free_commands`."""
        info = struct("VkCommandBufferAllocateInfo", commandPool=self._pool, commandBufferCount=1)
        made = ffi.new("VkCommandBuffer *")
        check(lib.vkAllocateCommandBuffers(self.device, info, made), self._name, "recording")
        return made[0]

    def free_commands(self, commands: Any) -> None:
        """Give commands back, whose work has ended."""
        lib.vkFreeCommandBuffers(self.device, self._pool, 1, array("VkCommandBuffer", [commands]))

    def _made(self) -> _Recording:
        pool = create_pool(self.device, MOST_SETS, MOST_DESCRIPTORS, self._name)
        return _Recording(self.allocate_commands(), self._made_fence(), pool)

    def _made_fence(self) -> Any:
        info = struct("VkFenceCreateInfo")
        return created(lib.vkCreateFence, "VkFence", self._name, "opening", self.device, info)

    def _retire(self) -> None:
        """Take back what the submissions that have ended used."""
        while self._running:
            running = self._running[0]
            result = lib.vkGetFenceStatus(self.device, running.fence)
            if result == 1:
                break
            check(result, self._name, "the work before this point")
            self._running.popleft()
            self._ended = running.number
            fences = array("VkFence", [running.fence])
            check(lib.vkResetFences(self.device, 1, fences), self._name, "waiting")
            recording = running.recording
            if recording is None:
                self._fences.append(running.fence)
                continue
            recording.sets = recording.descriptors = 0
            lib.vkResetDescriptorPool(self.device, recording.pool, 0)
            self._spare.append(recording)
        for _ in range(len(self._later)):
            number, action = self._later.popleft()
            if number <= self._ended:
                action()
            else:
                self._later.append((number, action))


def begin_commands(commands: Any, name: str, *, again: bool) -> None:
    """Begin to record, for one submission or for any number."""
    info = struct("VkCommandBufferBeginInfo", flags=_SIMULTANEOUS if again else _ONE_TIME)
    check(lib.vkBeginCommandBuffer(commands, info), name, "recording")


def create_pool(device: Any, sets: int, descriptors: int, name: str) -> Any:
    """A pool for sets of storage buffers."""
    size = struct("VkDescriptorPoolSize", type=_STORAGE_BUFFER, descriptorCount=max(1, descriptors))
    info = struct(
        "VkDescriptorPoolCreateInfo", maxSets=max(1, sets), poolSizeCount=1, pPoolSizes=size
    )
    return created(lib.vkCreateDescriptorPool, "VkDescriptorPool", name, "recording", device, info)


def allocate_set(device: Any, pool: Any, layout: Any, name: str) -> Any:
    """A set of a pool."""
    info = struct(
        "VkDescriptorSetAllocateInfo",
        descriptorPool=pool,
        descriptorSetCount=1,
        pSetLayouts=array("VkDescriptorSetLayout", [layout]),
    )
    made = ffi.new("VkDescriptorSet *")
    check(lib.vkAllocateDescriptorSets(device, info, made), name, "recording")
    return made[0]
