"""One driver for every language that the simulator runs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tapml_targets.driver import BoundLaunch, DeviceDescription, KernelArgument
from tapml_targets.errors import (
    CompileError,
    InputError,
    LimitExceededError,
    RemoteError,
    SetupError,
)
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.module_check import check_module
from tapml_targets.simulator import failures, toolchain
from tapml_targets.simulator.dialects import dialect_named
from tapml_targets.simulator.launching import (
    MOST_THREADS,
    LoadedKernel,
    PreparedLaunch,
    Runner,
    Schedule,
    loaded_kernel,
)
from tapml_targets.simulator.memory import GuardedBuffer

_ALLOW_VARIABLE: Final = "TAPML_ALLOW_SHARED_LIBRARIES"


class SimulatedDriver:
    """An open simulated device; see :class:`tapml_targets.driver.Driver`.

    Everything is synchronous: a launch has ended when it returns.
    """

    checked = False
    """Whether kernels are compiled so that every access is checked."""

    def __init__(
        self, description: DeviceDescription, dialect: str, wave_width: int, schedule: Schedule
    ) -> None:
        self.description = description
        self.dialects: Mapping[str, ModuleKind] = MappingProxyType({dialect: "source"})
        self._runner = Runner(wave_width, schedule)
        self._packed = dialect_named(dialect).packed
        self._elapsed: list[int] | None = None
        # A worker says 0 unless its server allows code with all rights; no word means this process.
        self._allowed = os.environ.get(_ALLOW_VARIABLE) != "0"

    def allocate(self, nbytes: int) -> GuardedBuffer:
        """See :meth:`Driver.allocate`."""
        most = self.description.limits.max_buffer_bytes
        if nbytes < 0 or nbytes > most > 0:
            raise InputError(
                f"cannot allocate {nbytes} bytes: one buffer on {self.description.name} has at "
                f"most {most}"
            )
        try:
            return self.new_buffer(nbytes)
        except MemoryError as error:
            raise SetupError(
                f"{self.description.name} has no room for {nbytes} bytes: {error}; free buffers "
                "or use a smaller model"
            ) from None

    def new_buffer(self, nbytes: int) -> GuardedBuffer:
        """A buffer; raises MemoryError where there is no room."""
        return GuardedBuffer(nbytes)

    def nbytes(self, buffer: GuardedBuffer) -> int:
        """See :meth:`Driver.nbytes`."""
        return buffer.nbytes

    def free(self, buffer: GuardedBuffer) -> None:
        """See :meth:`Driver.free`."""
        buffer.release()

    def write(self, buffer: GuardedBuffer, byte_offset: int, data: memoryview) -> None:
        """See :meth:`Driver.write`."""
        data = memoryview(data).cast("B")
        buffer.window(byte_offset, len(data), "write")[:] = data

    def read(self, buffer: GuardedBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`Driver.read`."""
        return memoryview(bytes(buffer.window(byte_offset, nbytes, "read")))

    def read_into(self, buffer: GuardedBuffer, byte_offset: int, target: memoryview) -> None:
        """See :meth:`Driver.read_into`."""
        target.cast("B")[:] = buffer.window(byte_offset, target.nbytes, "read")

    def show(self, buffer: GuardedBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`tapml_targets.driver.HostReadable.show`."""
        return buffer.window(byte_offset, nbytes, "read").toreadonly()

    def fill(self, buffer: GuardedBuffer, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """See :meth:`Driver.fill`."""
        window = buffer.window(byte_offset, nbytes, "fill")
        if not pattern:
            raise InputError("fill: the pattern must hold at least one byte")
        window[:] = (pattern * (nbytes // len(pattern) + 1))[:nbytes]

    def copy(
        self,
        source: GuardedBuffer,
        source_offset: int,
        target: GuardedBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        """See :meth:`Driver.copy`."""
        begin = source.check(source_offset, nbytes, "copy from")
        ctypes.memmove(target.check(target_offset, nbytes, "copy to"), begin, nbytes)

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """See :meth:`Driver.load`."""
        check_module(module, self.dialects, self.description.name)
        if not self._allowed:
            raise SetupError(
                "this server does not simulate kernels, because they run with all its rights on "
                "its processor; if the senders are trusted, start it with --allow-shared-libraries"
            )
        for kernel in kernels:
            if not kernel.symbol.isidentifier() or not kernel.symbol.isascii():
                raise CompileError(f"{kernel.symbol!r} is no name of a kernel")
            if kernel.threads_per_block > MOST_THREADS:
                raise LimitExceededError(
                    f"kernel {kernel.name!r} needs {kernel.threads_per_block} threads per block; "
                    f"{self.description.name} runs it with at most {MOST_THREADS}"
                )
            if kernel.subgroup_width not in (0, self._runner.wave_width):
                raise LimitExceededError(
                    f"kernel {kernel.name!r} needs waves of {kernel.subgroup_width} threads; "
                    f"{self.description.name} has waves of {self._runner.wave_width}"
                )
        symbols = [kernel.symbol for kernel in kernels]
        library = toolchain.built(module, symbols, checked=self.checked)
        return {
            kernel.name: loaded_kernel(kernel.name, library, kernel.symbol, packed=self._packed)
            for kernel in kernels
        }

    def launch(
        self,
        kernel: LoadedKernel,
        arguments: Sequence[KernelArgument],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> None:
        """See :meth:`Driver.launch`."""
        self.launch_all(self.bind([BoundLaunch(kernel, tuple(arguments), grid, block)]))

    def bind(self, launches: Sequence[BoundLaunch]) -> tuple[PreparedLaunch, ...]:
        """See :meth:`Driver.bind`."""
        most = self.description.limits.max_threads_per_block
        return tuple(PreparedLaunch(each, most) for each in launches if 0 not in each.threads)

    def launch_all(self, sequence: tuple[PreparedLaunch, ...]) -> None:
        """See :meth:`Driver.launch_all`."""
        for launch in sequence:
            if not launch.still_there():
                raise InputError(f"kernel {launch.kernel.name!r}: a buffer of it was freed")
            elapsed = self.run(launch)
            if self._elapsed is not None:
                self._elapsed.append(elapsed)

    def run(self, launch: PreparedLaunch) -> int:
        """Run a launch; the result is its nanoseconds. Raises RemoteError where a kernel fails."""
        elapsed, failure = self._runner.run(launch)
        if failure is not None:
            told = failures.sentence(failure, launch)
            raise RemoteError(
                f"{self.description.name}: kernel {launch.kernel.name!r}: {told}",
                command=f"kernel {launch.kernel.name!r}",
                driver_log=told,
            )
        return elapsed

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`."""
        self._elapsed = []

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        elapsed, self._elapsed = self._elapsed or [], None
        return lambda: sum(elapsed)

    def finish(self) -> None:
        """See :meth:`Driver.finish`; there is nothing to wait for."""

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        self._elapsed = None
