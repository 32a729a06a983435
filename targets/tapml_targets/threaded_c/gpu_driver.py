"""A real GPU whose kernels are C with threads: one stream of commands, through a vendor's binding.

Commands are enqueued and return; reading and :meth:`GpuDriver.finish` wait. A sequence becomes a
graph by its second run. A platform adds the calls of its binding.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np

from tapml_targets.driver import (
    BoundLaunch,
    BufferUse,
    DeviceDescription,
    KernelArgument,
    ScalarUse,
)
from tapml_targets.dtype import dtype
from tapml_targets.errors import (
    DeviceLostError,
    InputError,
    LimitExceededError,
    RemoteError,
    SetupError,
    TapmlError,
)
from tapml_targets.library import Kernel, ModuleKind
from tapml_targets.memory_commands import DeviceMemory, MemoryCommands

# The widest load of a kernel: a window that begins elsewhere gets an aligned stand-in.
ALIGNMENT: Final = 16
# Writes up to this size are copied first, so that the caller does not wait.
_LATER_BYTES: Final = 64 << 10
_MOST_WRITING: Final = 256
_PATTERNS: Final = (1, 2, 4)
# In CUDA's and HIP's words: behind one of these nothing runs on the device in this process.
_FATAL: Final = re.compile(
    r"illegal_?(?:address|instruction)|launch_?fail|launch_?time_?out|misaligned_?address"
    r"|hardware_?stack|invalid_?(?:pc|address_?space)|error_?assert|device_?(?:lost|unavailable)"
    r"|ecc_?(?:uncorrectable|not_?correctable)",
    re.IGNORECASE,
)

Direction: TypeAlias = Literal["in", "out", "within"]
"""To the device, from it, or on it."""


class GpuBuffer(DeviceMemory):
    """Device memory: the binding's object, and its address."""

    __slots__ = ("address", "memory")

    def __init__(self, memory: Any, address: int, nbytes: int) -> None:
        super().__init__(nbytes)
        self.memory = memory
        self.address = address


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel under its name.

    Attributes
    ----------
    name, kernel
        Its name in the Library, and the binding's object.
    count
        How many arguments it takes; None where the platform does not say.
    sizes
        The bytes of each, pointers included; empty where the platform does not say.
    """

    name: str
    kernel: Any
    count: int | None
    sizes: tuple[int, ...] = ()


@dataclass
class LaunchSequence:
    """Consecutive launches.

    `graph` is made by the second run; one whose windows need stand-ins has none.
    """

    launches: tuple[BoundLaunch, ...]
    buffers: tuple[GpuBuffer, ...]
    may_record: bool
    launched: bool = False
    graph: Any = None


class GpuDriver(MemoryCommands[GpuBuffer]):
    """One open GPU; see :class:`tapml_targets.driver.Driver`."""

    dialects: Mapping[str, ModuleKind]
    language: ClassVar[str]
    """Whose kernels, for errors: ``CUDA``."""

    def __init__(self, description: DeviceDescription) -> None:
        self.description = description
        # Copies of what is still being written.
        self._writing: list[Any] = []
        self._timed: list[tuple[Any, Any]] | None = None

    @abstractmethod
    def _reserve(self, nbytes: int) -> tuple[Any, int]:
        """At least one byte of device memory: the binding's object and the address."""

    @abstractmethod
    def _give_back(self, memory: Any) -> None:
        """Release memory behind the work that uses it."""

    @abstractmethod
    def _move(self, target: int, source: int, nbytes: int, direction: Direction) -> None:
        """Enqueue a copy between two addresses."""

    @abstractmethod
    def _repeat(self, address: int, nbytes: int, pattern: bytes) -> None:
        """Enqueue a fill with 1, 2 or 4 bytes, at multiples of them."""

    @abstractmethod
    def _run(self, launch: BoundLaunch, given: Sequence[Any], stream: Any) -> None:
        """Enqueue a kernel; `given` are numbers of numpy's, addresses as uint64."""

    @abstractmethod
    def _recorded(self, sequence: LaunchSequence) -> Any:
        """A graph of the launches, enqueued with :meth:`_enqueue`."""

    @abstractmethod
    def _replay(self, graph: Any) -> None:
        """Enqueue a graph."""

    @abstractmethod
    def _event(self) -> Any:
        """Enqueue an event that knows when it was reached."""

    @abstractmethod
    def _milliseconds(self, start: Any, end: Any) -> float:
        """Between two events."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait for everything enqueued."""

    @abstractmethod
    def _release(self) -> None:
        """Give the stream back."""

    def _allocate(self, nbytes: int) -> GpuBuffer:
        try:
            memory, address = self._reserve(max(1, nbytes))
        except Exception as error:
            raise SetupError(
                f"{self.description.name} has no room for {nbytes} bytes: {error}; "
                "free buffers or use a smaller model"
            ) from None
        return GpuBuffer(memory, address, nbytes)

    def free(self, buffer: GpuBuffer) -> None:
        """See :meth:`Driver.free`."""
        if not buffer.freed:
            buffer.release()
            with self._told("giving memory back"):
                self._give_back(buffer.memory)

    def _write(self, buffer: GpuBuffer, byte_offset: int, data: memoryview) -> None:
        later = len(data) <= _LATER_BYTES
        array = np.frombuffer(bytes(data) if later else data, np.uint8)
        with self._told(f"writing {len(data)} bytes"):
            self._move(buffer.address + byte_offset, array.ctypes.data, len(data), "in")
        self._writing.append(array)
        if not later or len(self._writing) > _MOST_WRITING:
            self.finish()

    def _read_into(self, buffer: GpuBuffer, byte_offset: int, target: memoryview) -> None:
        nbytes = len(target)
        if nbytes:
            array = np.frombuffer(target, np.uint8)
            with self._told(f"reading {nbytes} bytes"):
                self._move(array.ctypes.data, buffer.address + byte_offset, nbytes, "out")
            self.finish()

    def _fill(
        self, buffer: GpuBuffer, byte_offset: int, nbytes: int, pattern: bytes, phase: int = 0
    ) -> None:
        address, size = buffer.address + byte_offset, len(pattern)
        fits = size in _PATTERNS and address % size == 0 and not phase
        whole = nbytes - nbytes % size if fits else 0
        if whole:
            with self._told(f"filling {nbytes} bytes"):
                self._repeat(address, whole, pattern)
        if whole < nbytes:
            super()._fill(buffer, byte_offset + whole, nbytes - whole, pattern, phase)

    def _copy(
        self,
        source: GpuBuffer,
        source_offset: int,
        target: GpuBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        begin, end = source.address + source_offset, target.address + target_offset
        with self._told(f"copying {nbytes} bytes"):
            self._move(end, begin, nbytes, "within")

    def _check_threads(self, kernel: Kernel, most: int) -> None:
        """Raise LimitExceededError where the device does not run a kernel in such blocks."""
        if kernel.threads_per_block > most:
            raise LimitExceededError(
                f"kernel {kernel.name!r} needs {kernel.threads_per_block} threads per block; "
                f"{self.description.name} runs it with at most {most}"
            )

    def launch(
        self,
        kernel: LoadedKernel,
        arguments: Sequence[KernelArgument],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> None:
        """See :meth:`Driver.launch`."""
        launch = BoundLaunch(kernel, tuple(arguments), grid, block)
        started = self._mark()
        self._enqueue(launch)
        self._measured(started)

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """See :meth:`Driver.bind`."""
        kept = tuple(each for each in launches if 0 not in each.threads)
        uses = [
            argument
            for launch in kept
            for argument in launch.arguments
            if isinstance(argument, BufferUse)
        ]
        aligned = all(use.byte_offset % ALIGNMENT == 0 for use in uses)
        buffers = tuple({id(use.buffer): use.buffer for use in uses}.values())
        return LaunchSequence(kept, buffers, may_record=aligned and len(kept) > 1)

    def launch_all(self, sequence: LaunchSequence) -> None:
        """See :meth:`Driver.launch_all`."""
        # A graph holds addresses: memory that was freed may be another buffer's by now.
        for buffer in sequence.buffers:
            buffer.check(0, 0, "launch")
        started = self._mark()
        first, sequence.launched = not sequence.launched, True
        if first or not sequence.may_record:
            for launch in sequence.launches:
                self._enqueue(launch)
        else:
            with self._told("launching a recorded sequence"):
                if sequence.graph is None:
                    sequence.graph = self._recorded(sequence)
                self._replay(sequence.graph)
        self._measured(started)

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`."""
        self._timed = []

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        spans, self._timed = self._timed or [], None
        return lambda: round(sum(self._milliseconds(*span) for span in spans) * 1e6)

    def finish(self) -> None:
        """See :meth:`Driver.finish`."""
        with self._told("the work before this point"):
            self._wait()
        self._writing.clear()

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        try:
            self.finish()
        finally:
            self._timed = None
            self._writing.clear()
            # What failed is told by then; a device that is lost gives nothing back.
            with suppress(Exception):
                self._release()

    def _enqueue(self, launch: BoundLaunch, stream: Any = None) -> None:
        kernel: LoadedKernel = launch.kernel
        arguments = launch.arguments
        if kernel.count not in (None, len(arguments)):
            raise InputError(
                f"kernel {kernel.name!r} takes {kernel.count} arguments, got {len(arguments)}"
            )
        if 0 in launch.threads:
            return
        staged: list[tuple[GpuBuffer, BufferUse]] = []
        given = [self._argument(kernel, each, arguments, staged) for each in arguments]
        for place, (value, size) in enumerate(zip(given, kernel.sizes, strict=False)):
            if value.nbytes != size:
                raise InputError(
                    f"kernel {kernel.name!r}: argument {place} has {size} bytes, "
                    f"got {value.dtype} of {value.nbytes}"
                )
        what = f"kernel {kernel.name!r} with grid {launch.grid} and block {launch.block}"
        with self._told(what):
            self._run(launch, given, stream)
        for stand_in, use in staged:
            self.copy(stand_in, 0, use.buffer, use.byte_offset, use.nbytes)
            self.free(stand_in)

    def _argument(
        self,
        kernel: LoadedKernel,
        argument: KernelArgument,
        arguments: Sequence[KernelArgument],
        staged: list[tuple[GpuBuffer, BufferUse]],
    ) -> Any:
        if isinstance(argument, ScalarUse):
            if dtype(argument.dtype).numpy_name != argument.dtype:
                raise InputError(f"{self.language} kernels take no {argument.dtype} numbers")
            return np.dtype(argument.dtype).type(argument.value)
        if not isinstance(argument, BufferUse):
            raise InputError(
                f"kernel {kernel.name!r}: {self.language} kernels take buffers and scalars, not "
                "whole tensors"
            )
        buffer: GpuBuffer = argument.buffer
        buffer.check(argument.byte_offset, argument.nbytes, "launch")
        if argument.byte_offset % ALIGNMENT == 0 or argument.nbytes == 0:
            return np.uint64(buffer.address + argument.byte_offset)
        self._refuse_overlap(kernel, argument, arguments)
        stand_in = self.allocate(argument.nbytes)
        self.copy(buffer, argument.byte_offset, stand_in, 0, argument.nbytes)
        staged.append((stand_in, argument))
        return np.uint64(stand_in.address)

    def _refuse_overlap(
        self, kernel: LoadedKernel, use: BufferUse, arguments: Sequence[KernelArgument]
    ) -> None:
        end = use.byte_offset + use.nbytes
        for other in arguments:
            if (
                isinstance(other, BufferUse)
                and other is not use
                and other.buffer is use.buffer
                and other.byte_offset < end
                and use.byte_offset < other.byte_offset + other.nbytes
            ):
                raise InputError(
                    f"kernel {kernel.name!r}: two arguments overlap and one starts at byte "
                    f"{use.byte_offset}; on this device overlapping windows must start at "
                    f"multiples of {ALIGNMENT}"
                )

    def _mark(self) -> Any:
        return None if self._timed is None else self._event()

    def _measured(self, started: Any) -> None:
        if self._timed is not None and started is not None:
            self._timed.append((started, self._event()))

    def _told(self, what: str) -> _Told:
        return _Told(self.description.name, what)


class _Told:
    """Turns what a binding raises into a RemoteError that says what failed."""

    def __init__(self, device: str, what: str) -> None:
        self._device, self._what = device, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, TapmlError):
            told = DeviceLostError if _FATAL.search(str(error)) else RemoteError
            raise told(
                f"{self._device}: {self._what} failed: {error}",
                command=self._what,
                driver_log=str(error),
            ) from None
