"""One AMD GPU through AMD's bindings; see :mod:`tapml_targets.threaded_c.gpu_driver`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from tapml_targets.description import find_again
from tapml_targets.driver import BoundLaunch, DeviceDescription
from tapml_targets.errors import CompileError, SetupError
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.module_check import check_module
from tapml_targets.rocm.binding import HipError, ask, import_binding
from tapml_targets.rocm.code_object import argument_sizes
from tapml_targets.rocm.description import ARCHITECTURE, every_gpu
from tapml_targets.rocm.programs import compile_code_object
from tapml_targets.threaded_c.gpu_driver import (
    Direction,
    GpuDriver,
    LaunchSequence,
    LoadedKernel,
)

# The binding packs numbers of C's types, each at a multiple of its size.
_NUMBERS: Final = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
_COPIES: Final[Mapping[Direction, str]] = {
    "in": "hipMemcpyHtoDAsync",
    "out": "hipMemcpyDtoHAsync",
    "within": "hipMemcpyDtoDAsync",
}


def open_gpu(description: DeviceDescription) -> RocmDriver:
    """Open the GPU that `description` names.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    SetupError
        If it cannot be opened.
    """
    found, _ = find_again(description, every_gpu(), lambda gpu, _: gpu)
    return RocmDriver(found)


class _Owned:
    """A handle of HIP's, which a function gives back once nothing names it."""

    def __init__(self, handle: Any, destroy: Any) -> None:
        self.handle = handle
        self._destroy = destroy

    def __del__(self) -> None:
        # At the end of a process, and on a lost device, there is nothing to give back to.
        with suppress(Exception):
            self._destroy(self.handle)


class RocmDriver(GpuDriver):
    """One open AMD GPU; see :class:`tapml_targets.driver.Driver`."""

    dialects: Mapping[str, ModuleKind] = MappingProxyType({"hip-c": "source"})
    language = "HIP"

    def __init__(self, description: DeviceDescription) -> None:
        super().__init__(description)
        self._hip = import_binding("hip")
        self._architecture = description.details[ARCHITECTURE]
        try:
            self._select()
            self._stream = ask(self._hip.hipStreamCreate)
        except (HipError, RuntimeError) as error:
            raise SetupError(
                f"{description.name} is listed but cannot be opened: {error}"
            ) from None

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """See :meth:`Driver.load`."""
        check_module(module, self.dialects, self.description.name)
        code = compile_code_object(module, self._architecture)
        hip, sizes, loaded = self._hip, argument_sizes(code), {}
        with self._told("loading a module"):
            self._select()
            owned = _Owned(ask(hip.hipModuleLoadData, code), hip.hipModuleUnload)
        most_threads = hip.hipFunction_attribute.HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        for kernel in kernels:
            try:
                found = ask(hip.hipModuleGetFunction, owned.handle, kernel.symbol.encode())
            except HipError:
                raise CompileError(
                    f"the module built, but has no kernel {kernel.symbol!r}"
                ) from None
            with self._told(f"asking about kernel {kernel.name!r}"):
                self._check_threads(kernel, ask(hip.hipFuncGetAttribute, most_threads, found))
            taken = sizes.get(kernel.symbol)
            loaded[kernel.name] = LoadedKernel(
                # A function is valid as long as its module.
                kernel.name,
                (found, owned),
                None if taken is None else len(taken),
                taken or (),
            )
        return loaded

    def _select(self) -> None:
        """HIP's current device is the thread's: another driver may have chosen its own."""
        ask(self._hip.hipSetDevice, self.description.index)

    def _reserve(self, nbytes: int) -> tuple[Any, int]:
        self._select()
        memory = ask(self._hip.hipMalloc, nbytes)
        return memory, int(memory)

    def _give_back(self, memory: Any) -> None:
        # It waits for the work that uses the memory.
        ask(self._hip.hipFree, memory)

    def _move(self, target: int, source: int, nbytes: int, direction: Direction) -> None:
        ask(getattr(self._hip, _COPIES[direction]), target, source, nbytes, self._stream)

    def _repeat(self, address: int, nbytes: int, pattern: bytes) -> None:
        if address % 4 == 0 and nbytes % 4 == 0:
            # The binding takes a signed number.
            word = int.from_bytes((pattern * 4)[:4], "little", signed=True)
            ask(self._hip.hipMemsetD32Async, address, word, nbytes // 4, self._stream)
        elif len(pattern) == 1:
            ask(self._hip.hipMemsetD8Async, address, pattern[0], nbytes, self._stream)
        else:
            # Two bytes, at a multiple of two.
            word = int.from_bytes(pattern, "little")
            ask(self._hip.hipMemsetD16Async, address, word, nbytes // 2, self._stream)

    def _run(self, launch: BoundLaunch, given: Sequence[Any], stream: Any) -> None:
        packed = tuple(
            _NUMBERS[value.nbytes](int.from_bytes(value.tobytes(), "little")) for value in given
        )
        function, _ = launch.kernel.kernel
        ask(
            self._hip.hipModuleLaunchKernel, function, *launch.grid, *launch.block,
            launch.dynamic_shared_bytes, self._stream, None, packed,
        )  # fmt: skip

    def _recorded(self, sequence: LaunchSequence) -> Any:
        hip = self._hip
        mode = hip.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
        ask(hip.hipStreamBeginCapture, self._stream, mode)
        try:
            for launch in sequence.launches:
                self._enqueue(launch)
        finally:
            graph = ask(hip.hipStreamEndCapture, self._stream)
        try:
            made = ask(hip.hipGraphInstantiateWithFlags, graph, 0)
        finally:
            ask(hip.hipGraphDestroy, graph)
        return _Owned(made, hip.hipGraphExecDestroy)

    def _replay(self, graph: _Owned) -> None:
        ask(self._hip.hipGraphLaunch, graph.handle, self._stream)

    def _event(self) -> _Owned:
        self._select()
        owned = _Owned(ask(self._hip.hipEventCreate), self._hip.hipEventDestroy)
        ask(self._hip.hipEventRecord, owned.handle, self._stream)
        return owned

    def _milliseconds(self, start: _Owned, end: _Owned) -> float:
        return float(ask(self._hip.hipEventElapsedTime, start.handle, end.handle))

    def _wait(self) -> None:
        ask(self._hip.hipStreamSynchronize, self._stream)

    def _release(self) -> None:
        ask(self._hip.hipStreamDestroy, self._stream)
