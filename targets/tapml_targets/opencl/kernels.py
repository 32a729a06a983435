"""Kernels with the arguments they hold, and the windows on device memory behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tapml_targets.driver import BoundLaunch, BufferUse, KernelArgument, ScalarUse
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.memory_commands import DeviceMemory
from tapml_targets.opencl.discovery import import_pyopencl

# Before any module of pyopencl: it looks for drivers once, when it is imported.
cl = import_pyopencl()

_MAX_WINDOWS: Final = 64
# A longer sequence is always launched with the kernels that all callers share.
_MAX_OWN_KERNELS: Final = 4096


class DeviceBuffer(DeviceMemory):
    """Device memory and the windows that kernels were given on it."""

    __slots__ = ("memory", "windows")

    def __init__(self, memory: Any, nbytes: int) -> None:
        super().__init__(nbytes)
        self.memory = memory
        self.windows: dict[tuple[int, int], Any] = {}

    def window(self, byte_offset: int, nbytes: int) -> Any:
        """Memory that begins at an aligned `byte_offset`."""
        key = (byte_offset, nbytes)
        window = self.windows.get(key)
        if window is None:
            self.check(byte_offset, nbytes, "launch")
            if len(self.windows) >= _MAX_WINDOWS:
                # Kernels that still hold a window keep it alive by their own reference.
                self.windows.clear()
            window = self.windows[key] = self.memory.get_sub_region(byte_offset, nbytes)
        return window

    def release(self) -> None:
        """Give the memory back, windows first."""
        for window in self.windows.values():
            window.release()
        self.windows.clear()
        self.memory.release()
        super().release()


class LoadedKernel:
    """A kernel and the arguments it holds: setting a scalar costs 6 us, so none is set twice."""

    __slots__ = ("arguments", "count", "held", "kernel", "name", "program", "symbol")

    def __init__(self, name: str, program: Any, symbol: str) -> None:
        self.name = name
        self.program = program
        self.symbol = symbol
        self.kernel = cl.Kernel(program, symbol)
        self.count = int(self.kernel.num_args)
        self.arguments: Sequence[KernelArgument] | None = None
        self.held: list[Any] = [None] * self.count


class LaunchSequence:
    """Consecutive launches, made by :meth:`ArgumentSetter.bind`.

    Attributes
    ----------
    launches
        The bound launches.
    may_own
        Whether a second run may create its own kernels.
    launched
        Whether there was a first run, which uses the kernels that all callers share.
    own
        From the second run on: per launch a kernel whose arguments stay set, and its extents in
        threads. Setting arguments costs several times as much as enqueuing.
    """

    __slots__ = ("launched", "launches", "may_own", "own")

    def __init__(self, launches: Sequence[BoundLaunch], *, may_own: bool) -> None:
        self.launches = tuple(launches)
        self.may_own = may_own
        self.launched = False
        self.own: tuple[tuple[LoadedKernel, tuple[int, int, int], BoundLaunch], ...] | None = None

    def borrows_again(self) -> bool:
        """Whether to use shared kernels: at first, and while they still hold these arguments."""
        first, self.launched = not self.launched, True
        return (
            first
            or not self.may_own
            or all(each.kernel.arguments is each.arguments for each in self.launches)
        )


class ArgumentSetter:
    """Sets kernels' arguments on one queue.

    A window's start must be a multiple of `alignment`. Another window gets an aligned stand-in that
    is copied before and after the launch.
    """

    def __init__(self, context: Any, queue: Any, alignment: int) -> None:
        self.context = context
        self.queue = queue
        self.alignment = alignment

    def set_all(
        self, kernel: LoadedKernel, arguments: Sequence[KernelArgument]
    ) -> list[tuple[Any, BufferUse]]:
        """Set arguments that differ from the last launch; return stand-ins with their windows.

        Raises
        ------
        InputError
            If the number or kind of arguments is not the kernel's.
        """
        if len(arguments) != kernel.count:
            raise InputError(
                f"kernel {kernel.name!r} takes {kernel.count} arguments, got {len(arguments)}"
            )
        kernel.arguments = None
        held = kernel.held
        staged: list[tuple[Any, BufferUse]] = []
        for index, argument in enumerate(arguments):
            if isinstance(argument, BufferUse):
                memory = self._memory(kernel, argument, arguments, staged)
                if held[index] is not memory:
                    held[index] = None
                    kernel.kernel.set_arg(index, memory)
                    held[index] = memory
            elif isinstance(argument, ScalarUse):
                if held[index] is not argument and held[index] != argument:
                    held[index] = None
                    kernel.kernel.set_arg(index, _scalar(argument))
                    held[index] = argument
            else:
                raise InputError(
                    f"kernel {kernel.name!r}: OpenCL kernels take buffers and scalars, "
                    "not whole tensors"
                )
        if not staged:
            kernel.arguments = arguments
        return staged

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """Make a sequence; one whose windows need stand-ins never has its own kernels."""
        aligned = all(
            not isinstance(argument, BufferUse) or argument.byte_offset % self.alignment == 0
            for launch in launches
            for argument in launch.arguments
        )
        return LaunchSequence(launches, may_own=aligned and len(launches) <= _MAX_OWN_KERNELS)

    def own_kernels(
        self, sequence: LaunchSequence
    ) -> tuple[tuple[LoadedKernel, tuple[int, int, int], BoundLaunch], ...]:
        """A kernel per launch with its arguments set; launches of no thread are left out."""
        own = []
        for launch in sequence.launches:
            size = launch.threads
            if 0 not in size:
                shared = launch.kernel
                kernel = LoadedKernel(shared.name, shared.program, shared.symbol)
                self.set_all(kernel, launch.arguments)
                own.append((kernel, size, launch))
        return tuple(own)

    def copy(
        self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int
    ) -> None:
        """Enqueue a copy."""
        cl.enqueue_copy(
            self.queue,
            target,
            source,
            byte_count=nbytes,
            src_offset=source_offset,
            dst_offset=target_offset,
        )

    def _memory(
        self,
        kernel: LoadedKernel,
        use: BufferUse,
        arguments: Sequence[KernelArgument],
        staged: list[tuple[Any, BufferUse]],
    ) -> Any:
        buffer: Any = use.buffer
        if use.byte_offset == 0 or use.nbytes == 0:
            return buffer.memory
        if use.byte_offset % self.alignment == 0:
            return buffer.window(use.byte_offset, use.nbytes)
        memory = self._stand_in(kernel, use, arguments)
        staged.append((memory, use))
        return memory

    def _stand_in(
        self, kernel: LoadedKernel, use: BufferUse, arguments: Sequence[KernelArgument]
    ) -> Any:
        buffer: Any = use.buffer
        buffer.check(use.byte_offset, use.nbytes, "launch")
        end = use.byte_offset + use.nbytes
        for other in arguments:
            if (
                isinstance(other, BufferUse)
                and other is not use
                and other.buffer is buffer
                and other.byte_offset < end
                and use.byte_offset < other.byte_offset + other.nbytes
            ):
                raise InputError(
                    f"kernel {kernel.name!r}: two arguments overlap and one starts at byte "
                    f"{use.byte_offset}; on this device overlapping windows must start at "
                    f"multiples of {self.alignment}"
                )
        memory = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, use.nbytes)
        self.copy(buffer.memory, use.byte_offset, memory, 0, use.nbytes)
        return memory


def _scalar(argument: ScalarUse) -> Any:
    # OpenCL C forbids bool arguments; code generators pass them as char.
    name = "int8" if argument.dtype == "bool" else argument.dtype
    if dtype(name).numpy_name != name:
        raise InputError(f"OpenCL kernels take no {name} scalars")
    return np.dtype(name).type(argument.value)
