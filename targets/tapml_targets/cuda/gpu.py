"""One NVIDIA GPU: memory, launches and graphs through cuda-core, on one stream.

Commands are enqueued and return; reading and :meth:`GpuDriver.finish` wait. A sequence is a CUDA
graph from its second run on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from tapml_targets.cuda.description import every_gpu, import_core
from tapml_targets.cuda.programs import compile_cubin
from tapml_targets.description import find_again
from tapml_targets.driver import (
    BoundLaunch,
    BufferUse,
    DeviceDescription,
    KernelArgument,
    ScalarUse,
)
from tapml_targets.dtype import dtype
from tapml_targets.errors import (
    CompileError,
    InputError,
    LimitExceededError,
    RemoteError,
    SetupError,
)
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.module_check import check_module

# The widest load of a kernel: a window that begins elsewhere gets an aligned stand-in.
ALIGNMENT: Final = 16
# Writes up to this size are copied first, so that the caller does not wait.
_LATER_BYTES: Final = 64 << 10
_MOST_WRITING: Final = 256
_PATTERNS: Final = (1, 2, 4)


def open_gpu(description: DeviceDescription) -> GpuDriver:
    """Open the GPU that `description` names.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    SetupError
        If it cannot be opened.
    """
    gpus = every_gpu()
    (device, _), found = find_again(description, gpus, lambda gpu, _: gpu[1])
    return GpuDriver(device, found)


class DeviceBuffer:
    """Device memory."""

    __slots__ = ("address", "memory", "nbytes")

    def __init__(self, memory: Any, nbytes: int) -> None:
        self.memory = memory
        self.address = int(memory.handle)
        self.nbytes = nbytes

    def check(self, byte_offset: int, nbytes: int, what: str) -> int:
        """The address of a window; InputError if it is not within the buffer."""
        if byte_offset < 0 or nbytes < 0 or byte_offset + nbytes > self.nbytes:
            raise InputError(
                f"{what}: bytes {byte_offset} to {byte_offset + nbytes} are outside a buffer of "
                f"{self.nbytes} bytes"
            )
        return self.address + byte_offset


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel under its name, and how many arguments it takes."""

    name: str
    kernel: Any
    count: int


@dataclass
class LaunchSequence:
    """Consecutive launches.

    `graph` is made by the second run; one whose windows need stand-ins has none.
    """

    launches: tuple[BoundLaunch, ...]
    may_record: bool
    launched: bool = False
    graph: Any = None


class GpuDriver:
    """One open NVIDIA GPU; see :class:`tapml_targets.driver.Driver`."""

    dialects: Mapping[str, ModuleKind] = MappingProxyType({"cuda-c": "source"})

    def __init__(self, device: Any, description: DeviceDescription) -> None:
        self._core = import_core()
        self._device = device
        self.description = description
        try:
            device.set_current()
            self._stream = device.create_stream()
        except Exception as error:
            raise SetupError(
                f"{description.name} is listed but cannot be opened: {error}"
            ) from None
        # Copies of what is still being written.
        self._writing: list[Any] = []
        self._timed: list[tuple[Any, Any]] | None = None

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """See :meth:`Driver.allocate`."""
        most = self.description.limits.max_buffer_bytes
        if nbytes < 0 or nbytes > most > 0:
            raise InputError(
                f"cannot allocate {nbytes} bytes: one buffer on {self.description.name} has at "
                f"most {most}"
            )
        try:
            memory = self._device.allocate(max(1, nbytes), stream=self._stream)
        except Exception as error:
            raise SetupError(
                f"{self.description.name} has no room for {nbytes} bytes: {error}; "
                "free buffers or use a smaller model"
            ) from None
        return DeviceBuffer(memory, nbytes)

    def nbytes(self, buffer: DeviceBuffer) -> int:
        """See :meth:`Driver.nbytes`."""
        return buffer.nbytes

    def free(self, buffer: DeviceBuffer) -> None:
        """See :meth:`Driver.free`; the stream gives it back behind the work that uses it."""
        buffer.memory.close(self._stream)
        buffer.nbytes = 0

    def write(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        """See :meth:`Driver.write`."""
        data = memoryview(data).cast("B")
        address = buffer.check(byte_offset, len(data), "write")
        if not len(data):
            return
        later = len(data) <= _LATER_BYTES
        array = np.frombuffer(bytes(data) if later else data, np.uint8)
        self._move(array.ctypes.data, address, len(data), f"writing {len(data)} bytes")
        self._writing.append(array)
        if not later or len(self._writing) > _MOST_WRITING:
            self.finish()

    def read(self, buffer: DeviceBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`Driver.read`."""
        buffer.check(byte_offset, nbytes, "read")
        data = np.empty(nbytes, np.uint8).data
        self.read_into(buffer, byte_offset, data)
        return data

    def read_into(self, buffer: DeviceBuffer, byte_offset: int, target: memoryview) -> None:
        """See :meth:`Driver.read_into`."""
        nbytes = target.nbytes
        address = buffer.check(byte_offset, nbytes, "read")
        if not nbytes:
            return
        array = np.frombuffer(target, np.uint8)
        self._move(address, array.ctypes.data, nbytes, f"reading {nbytes} bytes")
        self.finish()

    def fill(self, buffer: DeviceBuffer, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """See :meth:`Driver.fill`."""
        address = buffer.check(byte_offset, nbytes, "fill")
        size = len(pattern)
        if not size:
            raise InputError("fill: the pattern must hold at least one byte")
        # CUDA fills with 1, 2 or 4 bytes, at multiples of them.
        whole = nbytes - nbytes % size if size in _PATTERNS and address % size == 0 else 0
        if whole:
            with self._told(f"filling {nbytes} bytes"):
                self._window(address, whole).fill(pattern, stream=self._stream)
        if whole < nbytes:
            data = pattern * ((nbytes - whole) // size + 1)
            self.write(buffer, byte_offset + whole, memoryview(data)[: nbytes - whole])

    def copy(
        self,
        source: DeviceBuffer,
        source_offset: int,
        target: DeviceBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        """See :meth:`Driver.copy`."""
        begin = source.check(source_offset, nbytes, "copy from")
        end = target.check(target_offset, nbytes, "copy to")
        if source is target and abs(source_offset - target_offset) < nbytes:
            self.write(target, target_offset, self.read(source, source_offset, nbytes))
        elif nbytes:
            self._move(begin, end, nbytes, f"copying {nbytes} bytes")

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """See :meth:`Driver.load`."""
        check_module(module, self.dialects, self.description.name)
        cubin = compile_cubin(module, self.description.limits.architecture)
        loaded = {}
        with self._told("loading a module"):
            code = self._core.ObjectCode.from_cubin(cubin)
        for kernel in kernels:
            try:
                found = code.get_kernel(kernel.symbol)
            except Exception:
                raise CompileError(
                    f"the module built, but has no kernel {kernel.symbol!r}"
                ) from None
            most = found.attributes.max_threads_per_block
            if kernel.threads_per_block > most:
                raise LimitExceededError(
                    f"kernel {kernel.name!r} needs {kernel.threads_per_block} threads per block; "
                    f"{self.description.name} runs it with at most {most}"
                )
            loaded[kernel.name] = LoadedKernel(kernel.name, found, found.num_arguments)
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
        started = self._mark()
        self._enqueue(launch, self._stream)
        self._measured(started)

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """See :meth:`Driver.bind`."""
        kept = tuple(each for each in launches if 0 not in each.threads)
        aligned = all(
            argument.byte_offset % ALIGNMENT == 0
            for launch in kept
            for argument in launch.arguments
            if isinstance(argument, BufferUse)
        )
        return LaunchSequence(kept, may_record=aligned and len(kept) > 1)

    def launch_all(self, sequence: LaunchSequence) -> None:
        """See :meth:`Driver.launch_all`."""
        started = self._mark()
        first, sequence.launched = not sequence.launched, True
        if first or not sequence.may_record:
            for launch in sequence.launches:
                self._enqueue(launch, self._stream)
        else:
            with self._told("launching a recorded sequence"):
                if sequence.graph is None:
                    sequence.graph = self._recorded(sequence)
                sequence.graph.launch(self._stream)
        self._measured(started)

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`."""
        self._timed = []

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        spans, self._timed = self._timed or [], None
        # A difference of two events is in milliseconds.
        return lambda: round(sum(end - start for start, end in spans) * 1e6)

    def finish(self) -> None:
        """See :meth:`Driver.finish`."""
        with self._told("the work before this point"):
            self._stream.sync()
        self._writing.clear()

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        try:
            self.finish()
        finally:
            self._timed = None
            self._writing.clear()
            self._stream.close()

    def _recorded(self, sequence: LaunchSequence) -> Any:
        builder = self._device.create_graph_builder()
        builder.begin_building()
        try:
            for launch in sequence.launches:
                self._enqueue(launch, builder)
        finally:
            builder.end_building()
        return builder.complete()

    def _enqueue(self, launch: BoundLaunch, stream: Any) -> None:
        kernel, arguments = launch.kernel, launch.arguments
        if len(arguments) != kernel.count:
            raise InputError(
                f"kernel {kernel.name!r} takes {kernel.count} arguments, got {len(arguments)}"
            )
        if 0 in launch.threads:
            return
        staged: list[tuple[DeviceBuffer, BufferUse]] = []
        given = [self._argument(kernel, each, arguments, staged) for each in arguments]
        config = self._core.LaunchConfig(
            grid=launch.grid, block=launch.block, shmem_size=launch.dynamic_shared_bytes
        )
        what = f"kernel {kernel.name!r} with grid {launch.grid} and block {launch.block}"
        with self._told(what):
            self._core.launch(stream, config, kernel.kernel, *given)
        for stand_in, use in staged:
            buffer: Any = use.buffer
            self.copy(stand_in, 0, buffer, use.byte_offset, use.nbytes)
            self.free(stand_in)

    def _argument(
        self,
        kernel: LoadedKernel,
        argument: KernelArgument,
        arguments: Sequence[KernelArgument],
        staged: list[tuple[DeviceBuffer, BufferUse]],
    ) -> Any:
        if isinstance(argument, ScalarUse):
            if dtype(argument.dtype).numpy_name != argument.dtype:
                raise InputError(f"CUDA kernels take no {argument.dtype} numbers")
            return np.dtype(argument.dtype).type(argument.value)
        if not isinstance(argument, BufferUse):
            raise InputError(
                f"kernel {kernel.name!r}: CUDA kernels take buffers and scalars, not whole tensors"
            )
        buffer: Any = argument.buffer
        address = buffer.check(argument.byte_offset, argument.nbytes, "launch")
        if argument.byte_offset % ALIGNMENT == 0 or argument.nbytes == 0:
            return np.uint64(address)
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

    def _window(self, address: int, nbytes: int) -> Any:
        return self._core.Buffer.from_handle(address, nbytes)

    def _move(self, source: int, target: int, nbytes: int, what: str) -> None:
        with self._told(what):
            self._window(source, nbytes).copy_to(self._window(target, nbytes), stream=self._stream)

    def _mark(self) -> Any:
        if self._timed is None:
            return None
        return self._stream.record(options=self._core.EventOptions(timing_enabled=True))

    def _measured(self, started: Any) -> None:
        if self._timed is not None and started is not None:
            self._timed.append((started, self._mark()))

    def _told(self, what: str) -> _Told:
        return _Told(self.description.name, what)


class _Told:
    """Turns what cuda-core raises into a RemoteError that says what failed."""

    def __init__(self, device: str, what: str) -> None:
        self._device, self._what = device, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        ours = (InputError, CompileError, SetupError, RemoteError)
        if isinstance(error, Exception) and not isinstance(error, ours):
            raise RemoteError(
                f"{self._device}: {self._what} failed: {error}",
                command=self._what,
                driver_log=str(error),
            ) from None
