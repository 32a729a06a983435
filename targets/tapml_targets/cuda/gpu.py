"""One NVIDIA GPU through cuda-core; see :mod:`tapml_targets.threaded_c.gpu_driver`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tapml_targets.cuda.description import every_gpu, import_core
from tapml_targets.cuda.programs import compile_cubin
from tapml_targets.description import find_again
from tapml_targets.driver import BoundLaunch, DeviceDescription
from tapml_targets.errors import CompileError, SetupError
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.module_check import check_module
from tapml_targets.threaded_c.gpu_driver import (
    Direction,
    GpuDriver,
    LaunchSequence,
    LoadedKernel,
)


def open_gpu(description: DeviceDescription) -> CudaDriver:
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
    return CudaDriver(device, found)


class CudaDriver(GpuDriver):
    """One open NVIDIA GPU; see :class:`tapml_targets.driver.Driver`."""

    dialects: Mapping[str, ModuleKind] = MappingProxyType({"cuda-c": "source"})
    language = "CUDA"

    def __init__(self, device: Any, description: DeviceDescription) -> None:
        super().__init__(description)
        self._core = import_core()
        self._device = device
        try:
            device.set_current()
            self._stream = device.create_stream()
        except Exception as error:
            raise SetupError(
                f"{description.name} is listed but cannot be opened: {error}"
            ) from None

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
            self._check_threads(kernel, found.attributes.max_threads_per_block)
            loaded[kernel.name] = LoadedKernel(kernel.name, found, found.num_arguments)
        return loaded

    def _reserve(self, nbytes: int) -> tuple[Any, int]:
        memory = self._device.allocate(nbytes, stream=self._stream)
        return memory, int(memory.handle)

    def _give_back(self, memory: Any) -> None:
        memory.close(self._stream)

    def _move(self, target: int, source: int, nbytes: int, direction: Direction) -> None:
        self._window(source, nbytes).copy_to(self._window(target, nbytes), stream=self._stream)

    def _repeat(self, address: int, nbytes: int, pattern: bytes) -> None:
        self._window(address, nbytes).fill(pattern, stream=self._stream)

    def _run(self, launch: BoundLaunch, given: Sequence[Any], stream: Any) -> None:
        config = self._core.LaunchConfig(
            grid=launch.grid, block=launch.block, shmem_size=launch.dynamic_shared_bytes
        )
        kernel = launch.kernel.kernel
        self._core.launch(self._stream if stream is None else stream, config, kernel, *given)

    def _recorded(self, sequence: LaunchSequence) -> Any:
        builder = self._device.create_graph_builder()
        builder.begin_building()
        try:
            for launch in sequence.launches:
                self._enqueue(launch, builder)
        finally:
            builder.end_building()
        return builder.complete()

    def _replay(self, graph: Any) -> None:
        graph.launch(self._stream)

    def _event(self) -> Any:
        return self._stream.record(options=self._core.EventOptions(timing_enabled=True))

    def _milliseconds(self, start: Any, end: Any) -> float:
        return float(end - start)

    def _wait(self) -> None:
        self._stream.sync()

    def _release(self) -> None:
        self._stream.close()

    def _window(self, address: int, nbytes: int) -> Any:
        return self._core.Buffer.from_handle(address, nbytes)
