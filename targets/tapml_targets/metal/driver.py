"""The metal platform: Apple's GPUs by pyobjc, and a simulated one that any machine has.

Memory is in shared storage, which processor and GPU both see. Commands are encoded, committed in
batches and awaited when something is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tapml_targets.description import find_again
from tapml_targets.driver import BoundLaunch, DeviceDescription, Driver, KernelArgument
from tapml_targets.errors import (
    CompileError,
    LimitExceededError,
    SetupError,
)
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.memory_commands import MemoryCommands
from tapml_targets.metal import simulated
from tapml_targets.metal.api import REMEDY, import_metal, said
from tapml_targets.metal.commands import CommandStream
from tapml_targets.metal.description import describe
from tapml_targets.metal.interface import read_interface
from tapml_targets.metal.language import DIALECT, FAST_MATH, LANGUAGE
from tapml_targets.metal.launching import Launcher, LaunchSequence, LoadedKernel
from tapml_targets.metal.memory import MetalBuffer
from tapml_targets.module_check import check_module

__all__ = ["REMEDY", "MetalDriver", "list_devices", "open_device"]


def list_devices() -> list[DeviceDescription]:
    """Apple's GPUs of this machine, then the simulated one where a compiler for it is installed.

    Raises
    ------
    SetupError
        If there is neither; the message says what to install.
    """
    try:
        metal = import_metal()
    except SetupError:
        found = simulated.list_devices(0)
        if not found:
            raise
        return found
    real = [describe(metal, device, index) for index, device in enumerate(_every_device(metal))]
    return [*real, *simulated.list_devices(len(real))]


def open_device(description: DeviceDescription) -> Driver:
    """Open the device that `description` names.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    """
    if simulated.is_simulated(description):
        return simulated.open_device(description)
    metal = import_metal()
    device, found = find_again(
        description, _every_device(metal), lambda each, index: describe(metal, each, index)
    )
    return MetalDriver(metal, device, found)


def _every_device(metal: Any) -> list[Any]:
    return list(metal.MTLCopyAllDevices() or ())


class MetalDriver(MemoryCommands[MetalBuffer]):
    """One open GPU; see :class:`tapml_targets.driver.Driver`."""

    dialects: Mapping[str, ModuleKind] = MappingProxyType({DIALECT: "source"})

    def __init__(self, metal: Any, device: Any, description: DeviceDescription) -> None:
        self._metal = metal
        self._device = device
        self.description = description
        self._stream = CommandStream(metal, device, description.name)
        self._launcher = Launcher(metal, self._stream, self._reserve, description.name)

    def show(self, buffer: MetalBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :class:`tapml_targets.driver.HostReadable`."""
        buffer.check(byte_offset, nbytes, "read")
        self.finish()
        return buffer.view[byte_offset : byte_offset + nbytes].toreadonly()

    def _allocate(self, nbytes: int) -> MetalBuffer:
        return MetalBuffer(self._reserve(nbytes), nbytes)

    def _write(self, buffer: MetalBuffer, byte_offset: int, data: memoryview) -> None:
        if self._stream.idle:
            buffer.view[byte_offset : byte_offset + len(data)] = data
            return
        # Earlier commands may still use the memory: the bytes follow them in their order.
        staging = self._allocate(len(data))
        staging.view[:] = data
        self._copy(staging, 0, buffer, byte_offset, len(data))

    def _read_into(self, buffer: MetalBuffer, byte_offset: int, target: memoryview) -> None:
        self.finish()
        target[:] = buffer.view[byte_offset : byte_offset + len(target)]

    def _copy(
        self,
        source: MetalBuffer,
        source_offset: int,
        target: MetalBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        encoder = self._stream.blit(f"copying {nbytes} bytes")
        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
            source.memory, source_offset, target.memory, target_offset, nbytes
        )

    def _copy_onto_itself(
        self, buffer: MetalBuffer, source_offset: int, target_offset: int, nbytes: int
    ) -> None:
        between = self._allocate(nbytes)
        self._copy(buffer, source_offset, between, 0, nbytes)
        self._copy(between, 0, buffer, target_offset, nbytes)

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """See :meth:`Driver.load`."""
        check_module(module, self.dialects, self.description.name)
        source = _text(module)
        library = self._built(source, module.options)
        return {kernel.name: self._kernel(library, source, kernel) for kernel in kernels}

    def launch(
        self,
        kernel: LoadedKernel,
        arguments: Sequence[KernelArgument],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> None:
        """See :meth:`Driver.launch`."""
        self.launch_all(self.bind([BoundLaunch(kernel, tuple(arguments), grid, block)]))

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """See :meth:`Driver.bind`."""
        return self._launcher.bind(launches)

    def launch_all(self, sequence: LaunchSequence) -> None:
        """See :meth:`Driver.launch_all`."""
        self._launcher.encode(sequence)

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`."""
        self._stream.begin_timing()

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        return self._stream.end_timing()

    def flush(self) -> None:
        """See :class:`tapml_targets.driver.BatchesCommands`."""
        self._stream.flush()

    def finish(self) -> None:
        """See :meth:`Driver.finish`."""
        self._stream.finish()

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        try:
            self.finish()
        finally:
            self._stream.close()

    def _reserve(self, nbytes: int) -> Any:
        memory = self._device.newBufferWithLength_options_(
            max(1, nbytes), self._metal.MTLResourceStorageModeShared
        )
        if memory is None:
            raise SetupError(
                f"{self.description.name} has no room for {nbytes} bytes; free buffers or use a "
                "smaller model"
            )
        return memory

    def _built(self, source: str, options: Sequence[str]) -> Any:
        metal = self._metal
        unknown = [option for option in options if option not in LANGUAGE.options]
        if unknown:
            raise CompileError(
                f"Metal modules have no build option {unknown[0]!r}; there are "
                f"{', '.join(sorted(LANGUAGE.options))}"
            )
        wanted = metal.MTLCompileOptions.alloc().init()
        fast = FAST_MATH in options
        if hasattr(wanted, "setMathMode_"):  # macOS 15 and later
            wanted.setMathMode_(metal.MTLMathModeFast if fast else metal.MTLMathModeSafe)
            wanted.setMathFloatingPointFunctions_(
                metal.MTLMathFloatingPointFunctionsFast
                if fast
                else metal.MTLMathFloatingPointFunctionsPrecise
            )
        else:
            wanted.setFastMathEnabled_(fast)
        library, error = self._device.newLibraryWithSource_options_error_(source, wanted, None)
        if library is None:
            raise CompileError(
                f"{self.description.name} does not build this module:\n{said(error)}"
            )
        return library

    def _kernel(self, library: Any, source: str, kernel: Kernel) -> LoadedKernel:
        interface = read_interface(source, kernel.symbol)
        function = library.newFunctionWithName_(kernel.symbol)
        if function is None:
            raise CompileError(f"the module built, but has no kernel {kernel.symbol!r}")
        pipeline, error = self._device.newComputePipelineStateWithFunction_error_(function, None)
        if pipeline is None:
            raise CompileError(
                f"{self.description.name} does not take the kernel {kernel.name!r}: {said(error)}"
            )
        most = int(pipeline.maxTotalThreadsPerThreadgroup())
        if kernel.threads_per_block > most:
            raise LimitExceededError(
                f"kernel {kernel.name!r} needs {kernel.threads_per_block} threads per block; "
                f"{self.description.name} runs it with at most {most}"
            )
        width = int(pipeline.threadExecutionWidth())
        if kernel.subgroup_width not in (0, width):
            raise LimitExceededError(
                f"kernel {kernel.name!r} is made for SIMD groups of {kernel.subgroup_width} "
                f"threads; {self.description.name} runs it with {width}"
            )
        return LoadedKernel(kernel.name, pipeline, interface)


def _text(module: CodeModule) -> str:
    try:
        source = module.code.decode()
    except UnicodeDecodeError:
        raise CompileError("Metal source must be UTF-8 text") from None
    if not source.strip():
        raise CompileError("this module holds no Metal source")
    return source
