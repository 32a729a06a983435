"""The OpenCL platform: devices of every installed driver, through pyopencl.

One in-order queue per device, so that commands keep the order they are given in, and another with
timestamps while kernels are timed: a driver may take longer for commands of that one. Commands are
enqueued and return; :meth:`OpenCLDriver.read` and :meth:`OpenCLDriver.finish` wait.

numpy comes with pyopencl, so it is imported where it is used: without either, the error says what
to install.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.description import find_again
from tapml_targets.driver import BoundLaunch, BufferUse, DeviceDescription, KernelArgument
from tapml_targets.errors import (
    CompileError,
    LimitExceededError,
    RemoteError,
    SetupError,
)
from tapml_targets.installed import install_hint
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.memory_commands import MemoryCommands
from tapml_targets.module_check import check_module
from tapml_targets.opencl.discovery import import_pyopencl

if TYPE_CHECKING:
    from tapml_targets.opencl.kernels import DeviceBuffer, LaunchSequence, LoadedKernel

REMEDY: Final = (
    "install a driver, e.g. Debian's pocl-opencl-icd, or the processor runtime from PyPI: "
    f"{install_hint('opencl-cpu')}"
)
# Longest pattern every OpenCL driver fills with by itself.
_MAX_FILL: Final = 128
# Writes up to this size are copied first, so that the caller does not wait.
_LATER_BYTES: Final = 64 << 10
_MAX_WRITING: Final = 256


def list_devices() -> list[DeviceDescription]:
    """All OpenCL devices of this machine, in the order of their drivers.

    Raises
    ------
    SetupError
        If pyopencl is not installed.
    """
    import_pyopencl()
    from tapml_targets.opencl.description import describe, every_device

    return [describe(device, index) for index, device in enumerate(every_device())]


def open_device(description: DeviceDescription) -> OpenCLDriver:
    """Open the device that `description` names by index, name and driver.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    """
    import_pyopencl()
    from tapml_targets.opencl.description import describe, every_device

    return OpenCLDriver(*find_again(description, every_device(), describe))


class OpenCLDriver(MemoryCommands["DeviceBuffer"]):
    """One open OpenCL device; see :class:`tapml_targets.driver.Driver`."""

    dialects: Mapping[str, ModuleKind] = MappingProxyType({"opencl-c": "source"})

    def __init__(self, device: Any, description: DeviceDescription) -> None:
        from tapml_targets.opencl.description import offset_alignment
        from tapml_targets.opencl.kernels import ArgumentSetter

        self._cl = cl = import_pyopencl()
        self.description = description
        self._device = device
        try:
            self._context = cl.Context([device])
            self._queue = self._plain = cl.CommandQueue(self._context, device)
        except cl.Error as error:
            raise SetupError(
                f"{description.vendor_platform} lists {description.name} but does not open it: "
                f"{error}"
            ) from None
        self._setter = ArgumentSetter(self._context, self._queue, offset_alignment(device))
        self._timed: list[Any] | None = None
        # The queue with timestamps, made when it is first asked for.
        self._timing: Any = None
        # Pending writes: each holds its copy, and waits when it is released.
        self._writing: list[Any] = []
        # What a wait found that could not tell it.
        self._untold: RemoteError | None = None

    def _allocate(self, nbytes: int) -> DeviceBuffer:
        try:
            memory = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(1, nbytes))
        except self._cl.Error as error:
            raise SetupError(
                f"{self.description.name} has no room for {nbytes} bytes: {error}; "
                "free buffers or use a smaller model"
            ) from None
        from tapml_targets.opencl.kernels import DeviceBuffer

        return DeviceBuffer(memory, nbytes)

    def free(self, buffer: DeviceBuffer) -> None:
        """See :meth:`Driver.free`. No driver is trusted to keep memory that its work still uses.

        If that work failed, the next command that waits reports it: this one may be cleaning up
        after an error that says more.
        """
        try:
            self.finish()
        except RemoteError as error:
            self._untold = error
        buffer.release()

    def _write(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        import numpy as np

        later = len(data) <= _LATER_BYTES
        try:
            event = self._cl.enqueue_copy(
                self._queue,
                buffer.memory,
                np.frombuffer(bytes(data) if later else data, np.uint8),
                dst_offset=byte_offset,
                is_blocking=not later,
            )
        except self._cl.Error as error:
            raise self._failure(f"writing {len(data)} bytes", error) from None
        if later:
            self._writing.append(event)
        if len(self._writing) > _MAX_WRITING:
            self._writing.clear()

    def _read_into(self, buffer: DeviceBuffer, byte_offset: int, target: memoryview) -> None:
        if not len(target):
            return
        import numpy as np

        self._tell()
        try:
            self._cl.enqueue_copy(
                self._queue,
                np.frombuffer(target, np.uint8),
                buffer.memory,
                src_offset=byte_offset,
                is_blocking=True,
            )
        except self._cl.Error as error:
            raise self._failure(f"reading {len(target)} bytes", error) from None
        self._writing.clear()

    def _fill(
        self, buffer: DeviceBuffer, byte_offset: int, nbytes: int, pattern: bytes, phase: int = 0
    ) -> None:
        size = len(pattern)
        # OpenCL fills with 1, 2, 4 ... 128 bytes, at multiples of them.
        whole = nbytes - nbytes % size
        if phase or size & (size - 1) or size > _MAX_FILL or byte_offset % size:
            whole = 0
        if whole:
            try:
                self._cl.enqueue_fill_buffer(
                    self._queue, buffer.memory, pattern, byte_offset, whole
                )
            except self._cl.Error as error:
                raise self._failure(f"filling {nbytes} bytes", error) from None
        super()._fill(buffer, byte_offset + whole, nbytes - whole, pattern, phase)

    def _copy(
        self,
        source: DeviceBuffer,
        source_offset: int,
        target: DeviceBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        try:
            self._setter.copy(source.memory, source_offset, target.memory, target_offset, nbytes)
        except self._cl.Error as error:
            raise self._failure(f"copying {nbytes} bytes", error) from None

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """See :meth:`Driver.load`."""
        from tapml_targets.opencl.kernels import LoadedKernel
        from tapml_targets.opencl.programs import build_program

        check_module(module, self.dialects, self.description.name)
        cl = self._cl
        program = build_program(self._context, self._device, module.code, module.options)
        loaded = {}
        for kernel in kernels:
            try:
                built = LoadedKernel(kernel.name, program, kernel.symbol)
            except cl.Error:
                raise CompileError(
                    f"the module built, but has no kernel {kernel.symbol!r}"
                ) from None
            most = built.kernel.get_work_group_info(
                cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device
            )
            if kernel.threads_per_block > most:
                raise LimitExceededError(
                    f"kernel {kernel.name!r} needs {kernel.threads_per_block} threads per block; "
                    f"{self.description.name} runs it with at most {most}"
                )
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
        size = (grid[0] * block[0], grid[1] * block[1], grid[2] * block[2])
        if 0 in size:
            return
        staged: list[tuple[Any, BufferUse]] = []
        try:
            if kernel.arguments is not arguments:
                staged = self._setter.set_all(kernel, arguments)
            event = self._cl.enqueue_nd_range_kernel(self._queue, kernel.kernel, size, block)
            for memory, use in staged:
                buffer: Any = use.buffer
                self._setter.copy(memory, 0, buffer.memory, use.byte_offset, use.nbytes)
        except self._cl.Error as error:
            raise self._launch_failure(kernel, grid, block, error) from None
        if self._timed is not None:
            self._timed.append(event)

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """See :meth:`Driver.bind`."""
        return self._setter.bind(launches)

    def launch_all(self, sequence: LaunchSequence) -> None:
        """See :meth:`Driver.launch_all`."""
        if sequence.own is None:
            if sequence.borrows_again():
                for borrowed in sequence.launches:
                    self.launch(*borrowed[:4])
                return
            try:
                sequence.own = self._setter.own_kernels(sequence)
            except self._cl.Error as error:
                raise self._failure("setting the arguments of a call", error) from None
        enqueue, queue, timed = self._cl.enqueue_nd_range_kernel, self._queue, self._timed
        for kernel, size, launch in sequence.own:
            try:
                event = enqueue(queue, kernel.kernel, size, launch.block)
            except self._cl.Error as error:
                raise self._launch_failure(kernel, launch.grid, launch.block, error) from None
            if timed is not None:
                timed.append(event)

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`."""
        cl = self._cl
        if self._timing is None:
            enable = cl.command_queue_properties.PROFILING_ENABLE
            try:
                self._timing = cl.CommandQueue(self._context, self._device, properties=enable)
            except cl.Error as error:
                raise self._failure("making a queue with timestamps", error) from None
        self._go_on_with(self._timing)
        self._timed = []

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        events, self._timed = self._timed or [], None
        try:
            self._go_on_with(self._plain)
        except RemoteError as error:
            # A launch that failed says more.
            self._untold = error

        def elapsed() -> int:
            return sum(event.profile.end - event.profile.start for event in events)

        return elapsed

    def finish(self) -> None:
        """See :meth:`Driver.finish`."""
        self._tell()
        try:
            self._queue.finish()
        except self._cl.Error as error:
            raise self._failure("the work before this point", error) from None
        self._writing.clear()

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        try:
            self.finish()
        finally:
            self._timed = None
            self._writing.clear()
            del self._setter, self._queue, self._plain, self._timing, self._context

    def _go_on_with(self, queue: Any) -> None:
        """Give further commands to `queue`; they begin after those of the one before."""
        if queue is self._queue:
            return
        try:
            before = self._cl.enqueue_marker(self._queue)
            # Until it is flushed, a driver need not begin what is on a queue.
            self._queue.flush()
            self._cl.enqueue_barrier(queue, wait_for=[before])
        except self._cl.Error as error:
            raise self._failure("going on with another queue", error) from None
        self._queue = self._setter.queue = queue

    def _tell(self) -> None:
        error, self._untold = self._untold, None
        if error is not None:
            raise error

    def _launch_failure(
        self,
        kernel: LoadedKernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        error: Exception,
    ) -> RemoteError:
        return self._failure(f"kernel {kernel.name!r} with grid {grid} and block {block}", error)

    def _failure(self, what: str, error: Exception) -> RemoteError:
        return RemoteError(
            f"{self.description.name}: {what} failed: {error}", command=what, driver_log=str(error)
        )
