"""The cpu platform: shared objects on this machine's processor.

Its kernels are host functions over whole tensors. Everything is synchronous; ``finish`` has
nothing to wait for.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tapml_targets.cpu.host_memory import HostBuffer, dlpack_view
from tapml_targets.cpu.loader import (
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

# A pattern is repeated to about this size, and that over and over: what fits into a cache.
_FILL_BYTES: Final = 64 << 10


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
                features=frozenset(("float16", "float64")),
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
        If it is another machine's.
    """
    found = list_devices()[0]
    if description.name != found.name or description.index != 0:
        raise NoSuchDeviceError(
            f"the processor {description.name!r} is not here; this machine has {found.name!r}"
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


class CPUDriver:
    """The processor of this machine; see :class:`tapml_targets.driver.Driver`."""

    def __init__(self, description: DeviceDescription, allow_shared_libraries: bool) -> None:
        self.description = description
        self._allowed = allow_shared_libraries
        self._elapsed: list[int] | None = None

    def allocate(self, nbytes: int) -> HostBuffer:
        """See :meth:`Driver.allocate`."""
        if not 0 <= nbytes <= self.description.limits.max_buffer_bytes:
            raise InputError(
                f"cannot allocate {nbytes} bytes: this machine has "
                f"{self.description.limits.memory_bytes}"
            )
        try:
            return HostBuffer(nbytes)
        except MemoryError:
            raise SetupError(f"there is no room for {nbytes} bytes; free buffers") from None

    def nbytes(self, buffer: HostBuffer) -> int:
        """See :meth:`Driver.nbytes`."""
        return buffer.nbytes

    def free(self, buffer: HostBuffer) -> None:
        """See :meth:`Driver.free`."""
        buffer.release()

    def write(self, buffer: HostBuffer, byte_offset: int, data: memoryview) -> None:
        """See :meth:`Driver.write`."""
        source = data.cast("B")
        buffer.window(byte_offset, len(source), "write")[:] = source

    def read(self, buffer: HostBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`Driver.read`."""
        return memoryview(bytearray(buffer.window(byte_offset, nbytes, "read")))

    def read_into(self, buffer: HostBuffer, byte_offset: int, target: memoryview) -> None:
        """See :meth:`Driver.read_into`."""
        into = target.cast("B")
        into[:] = buffer.window(byte_offset, len(into), "read")

    def show(self, buffer: HostBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`tapml_targets.driver.ShowsMemory.show`."""
        return buffer.window(byte_offset, nbytes, "read").toreadonly()

    def opens_memory(self) -> bool:
        """See :meth:`tapml_targets.driver.OpensMemory.opens_memory`."""
        return True

    @contextmanager
    def open_memory(
        self, buffer: HostBuffer, byte_offset: int, nbytes: int
    ) -> Iterator[memoryview]:
        """See :meth:`tapml_targets.driver.OpensMemory.open_memory`."""
        yield buffer.window(byte_offset, nbytes, "write")

    def fill(self, buffer: HostBuffer, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """See :meth:`Driver.fill`."""
        if not pattern:
            raise InputError("fill: the pattern must hold at least one byte")
        window = buffer.window(byte_offset, nbytes, "fill")
        data = pattern * max(1, min(nbytes, _FILL_BYTES) // len(pattern))
        for start in range(0, nbytes, len(data)):
            part = window[start : start + len(data)]
            part[:] = data[: len(part)]

    def copy(
        self,
        source: HostBuffer,
        source_offset: int,
        target: HostBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        """See :meth:`Driver.copy`."""
        # Overlapping windows of one buffer are copied as if the source were read first.
        target.window(target_offset, nbytes, "copy to")[:] = source.window(
            source_offset, nbytes, "copy from"
        )

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
        """See :meth:`Driver.bind`; arguments are made what host functions take."""
        bound = []
        for kernel, arguments, grid, block in launches:
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
        return argument.value
    raise InputError(f"kernel {name!r}: host functions take whole tensors, not pointers")
