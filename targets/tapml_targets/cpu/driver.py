"""The cpu platform: shared objects on this machine's processor.

Its kernels are host functions over tensors with shape and dtype. Everything is synchronous;
``finish`` has nothing to wait for.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tapml_targets.cpu.host_memory import HostBuffer, dlpack_view
from tapml_targets.cpu.loader import (
    DIALECTS,
    import_tvm_ffi,
    load_shared_object,
    shared_libraries_allowed,
)
from tapml_targets.driver import (
    BoundLaunch,
    DeviceDescription,
    KernelArgument,
    ScalarUse,
    TensorUse,
)
from tapml_targets.errors import InputError, NoSuchDeviceError, RemoteError, SetupError
from tapml_targets.installed import install_hint, package_version
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.limits import Limits
from tapml_targets.memory_commands import MemoryCommands


def list_devices() -> list[DeviceDescription]:
    """List the one device: the processor of this machine.

    Raises
    ------
    SetupError
        If apache-tvm-ffi is not installed.
    """
    version = package_version("apache-tvm-ffi")
    if version is None:
        raise SetupError(f"the cpu platform needs apache-tvm-ffi: {install_hint('cpu')}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return [
        DeviceDescription(
            platform="cpu",
            index=0,
            name=_processor_name(),
            vendor_platform="apache-tvm-ffi",
            device_type="cpu",
            driver_version=version,
            limits=Limits(
                max_buffer_bytes=memory,
                memory_bytes=memory,
                features=frozenset(("float16", "float64", "int8", "int16", "int64")),
                architecture=platform.machine(),
            ),
            details={
                "machine": platform.machine(),
                "system": platform.system(),
                "processors": str(os.cpu_count() or 1),
            },
        )
    ]


def open_device(
    description: DeviceDescription, *, allow_shared_libraries: bool | None = None
) -> CPUDriver:
    """Open the processor that `description` names.

    Parameters
    ----------
    description
        One of :func:`list_devices`.
    allow_shared_libraries
        Whether modules may be loaded; None asks ``TAPML_ALLOW_SHARED_LIBRARIES`` in the
        environment, which is off unless it is ``1``.

    Raises
    ------
    NoSuchDeviceError
        If it is another machine's, or was listed by another version of apache-tvm-ffi.
    """
    found = list_devices()[0]
    if (description.name, description.driver_version) != (found.name, found.driver_version):
        raise NoSuchDeviceError(
            f"the processor {description.name!r} (apache-tvm-ffi {description.driver_version}) is "
            f"not here; this machine has {found.name!r} ({found.driver_version})"
        )
    if allow_shared_libraries is None:
        allow_shared_libraries = shared_libraries_allowed()
    return CPUDriver(found, allow_shared_libraries)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "processor"


@dataclass(frozen=True)
class LoadedFunction:
    """A host function under its kernel's name."""

    name: str
    function: Any


_HostSequence: TypeAlias = tuple[tuple[LoadedFunction, tuple[Any, ...]], ...]


class CPUDriver(MemoryCommands[HostBuffer]):
    """The processor of this machine; see :class:`tapml_targets.driver.Driver`."""

    dialects = DIALECTS
    # It fits into a cache.
    filled_at_once = 64 << 10

    def __init__(self, description: DeviceDescription, allow_shared_libraries: bool) -> None:
        self.description = description
        self._allowed = allow_shared_libraries
        self._elapsed: list[int] | None = None

    def _allocate(self, nbytes: int) -> HostBuffer:
        try:
            return HostBuffer(nbytes)
        except MemoryError:
            raise SetupError(f"there is no room for {nbytes} bytes; free buffers") from None

    def _write(self, buffer: HostBuffer, byte_offset: int, data: memoryview) -> None:
        buffer.bytes[byte_offset : byte_offset + len(data)] = data

    def read(self, buffer: HostBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`Driver.read`."""
        return memoryview(bytearray(buffer.window(byte_offset, nbytes, "read")))

    def _read_into(self, buffer: HostBuffer, byte_offset: int, target: memoryview) -> None:
        target[:] = buffer.bytes[byte_offset : byte_offset + len(target)]

    def show(self, buffer: HostBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`tapml_targets.driver.HostReadable.show`."""
        return buffer.window(byte_offset, nbytes, "read").toreadonly()

    def _copy(
        self,
        source: HostBuffer,
        source_offset: int,
        target: HostBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        given = source.bytes[source_offset : source_offset + nbytes]
        target.bytes[target_offset : target_offset + nbytes] = given

    def _copy_onto_itself(
        self, buffer: HostBuffer, source_offset: int, target_offset: int, nbytes: int
    ) -> None:
        # A slice of a view is assigned as if all of it were read first.
        self._copy(buffer, source_offset, buffer, target_offset, nbytes)

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedFunction]:
        """See :meth:`Driver.load`."""
        functions = load_shared_object(module, kernels, allowed=self._allowed)
        return {name: LoadedFunction(name, function) for name, function in functions.items()}

    def launch(
        self,
        kernel: LoadedFunction,
        arguments: Sequence[KernelArgument],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> None:
        """See :meth:`Driver.launch`; a host function has one block of one thread."""
        self.launch_all(self.bind([BoundLaunch(kernel, tuple(arguments), grid, block)]))

    def bind(self, launches: Sequence[BoundLaunch]) -> _HostSequence:
        """See :meth:`Driver.bind`; arguments are converted for host functions."""
        bound = []
        for kernel, arguments, grid, block, _ in launches:
            if grid != (1, 1, 1) or block != (1, 1, 1):
                raise InputError(
                    f"kernel {kernel.name!r}: host functions run once, not over a grid of {grid} "
                    f"blocks of {block}"
                )
            bound.append((kernel, tuple([_convert(kernel.name, each) for each in arguments])))
        return tuple(bound)

    def launch_all(self, sequence: _HostSequence) -> None:
        """See :meth:`Driver.launch_all`."""
        for kernel, arguments in sequence:
            started = time.perf_counter_ns()
            try:
                kernel.function(*arguments)
            except (RuntimeError, TypeError, ValueError, AssertionError) as error:
                raise RemoteError(
                    f"kernel {kernel.name!r} failed: {error}",
                    command=f"kernel {kernel.name!r}",
                    driver_log=str(error),
                ) from None
            if self._elapsed is not None:
                self._elapsed.append(time.perf_counter_ns() - started)

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`."""
        self._elapsed = []

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        total = sum(self._elapsed or ())
        self._elapsed = None
        return lambda: total

    def finish(self) -> None:
        """See :meth:`Driver.finish`."""

    def close(self) -> None:
        """See :meth:`Driver.close`."""


def _convert(name: str, argument: KernelArgument) -> Any:
    if isinstance(argument, TensorUse):
        buffer = argument.buffer
        if not isinstance(buffer, HostBuffer):
            raise InputError(f"kernel {name!r}: not a buffer of this device")
        view = dlpack_view(buffer, argument.byte_offset, argument.shape, argument.dtype)
        return import_tvm_ffi().from_dlpack(view)
    if isinstance(argument, ScalarUse):
        # A host function tells integers from floats.
        return float(argument.value) if "float" in argument.dtype else argument.value
    raise InputError(f"kernel {name!r}: host functions take whole tensors, not pointers")
