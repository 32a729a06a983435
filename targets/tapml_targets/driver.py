"""The interface every platform implements: ``tapml_targets.<platform>.driver``.

A platform folder holds ``driver.py`` with two functions::

    def list_devices() -> list[DeviceDescription]: ...
    def open_device(description: DeviceDescription) -> Driver: ...

and ``codegen.py``, which only ``tapml.compiler`` imports. The generic code never asks which
platform it talks to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from tapml_targets.library import CodeModule, Kernel
from tapml_targets.limits import Limits

# Each driver has classes of its own for these; the generic code only hands them back.
Buffer: TypeAlias = Any
LoadedKernel: TypeAlias = Any
LaunchSequence: TypeAlias = Any


@dataclass(frozen=True)
class DeviceDescription:
    """One device as its platform lists it.

    Attributes
    ----------
    platform
        Folder name of the platform: ``cpu``, ``opencl``.
    index
        Position in the platform's own list.
    name
        The device's name as its driver gives it.
    vendor_platform
        The implementation behind it, e.g. ``Portable Computing Language``.
    device_type
        ``gpu``, ``accelerator``, ``cpu`` or ``checker`` (a simulator never chosen by default).
    driver_version
        Version text of driver and platform.
    limits
        Bounds and features.
    details
        Whatever else the driver says, for people and for the fingerprint.
    """

    platform: str
    index: int
    name: str
    vendor_platform: str
    device_type: str
    driver_version: str
    limits: Limits
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BufferUse:
    """A window on device memory handed to a kernel as a pointer.

    `behind` bytes that follow it are a guard band, to be watched for stray writes: a platform that
    holds a kernel to its window lets it reach those as well.
    """

    buffer: Buffer
    byte_offset: int
    nbytes: int
    behind: int = 0


@dataclass(frozen=True)
class TensorUse:
    """A window on device memory handed to a kernel as a whole tensor."""

    buffer: Buffer
    byte_offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ScalarUse:
    """An integer handed to a kernel as `dtype`."""

    value: int
    dtype: str


KernelArgument: TypeAlias = BufferUse | TensorUse | ScalarUse


class BoundLaunch(NamedTuple):
    """A kernel with its arguments: `grid` blocks of `block` threads."""

    kernel: LoadedKernel
    arguments: tuple[KernelArgument, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def threads(self) -> tuple[int, int, int]:
        """Threads along each axis."""
        (x, y, z), (bx, by, bz) = self.grid, self.block
        return x * bx, y * by, z * bz


class Driver(Protocol):
    """One open device. All calls come from one thread; launches may be asynchronous."""

    description: DeviceDescription

    def allocate(self, nbytes: int) -> Buffer:
        """Reserve at least `nbytes` (and at least one) bytes of device memory."""

    def nbytes(self, buffer: Buffer) -> int:
        """Bytes that may be used of `buffer`."""

    def free(self, buffer: Buffer) -> None:
        """Give memory back, after the work that uses it."""

    def write(self, buffer: Buffer, byte_offset: int, data: memoryview) -> None:
        """Copy `data` to the device. `data` may be reused when this returns."""

    def read(self, buffer: Buffer, byte_offset: int, nbytes: int) -> memoryview:
        """Copy from the device, after all earlier launches."""

    def read_into(self, buffer: Buffer, byte_offset: int, target: memoryview) -> None:
        """Copy from the device, after all earlier launches, filling the writable `target`.

        Into memory that is used again this is many times faster than :meth:`read`: fresh memory
        has to be paged in first.
        """

    def fill(self, buffer: Buffer, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """Repeat `pattern` over a window; `nbytes` need not be a multiple of its length."""

    def copy(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, nbytes: int
    ) -> None:
        """Copy on the device."""

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """Build a module; the result is keyed by kernel name. Raises CompileError with the log."""

    def launch(
        self,
        kernel: LoadedKernel,
        arguments: Sequence[KernelArgument],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> None:
        """Enqueue a kernel: `grid` blocks of `block` threads."""

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """Make launches ready to be enqueued one after the other, as often as wanted."""

    def launch_all(self, sequence: LaunchSequence) -> None:
        """Enqueue every launch of a sequence, in order."""

    def begin_timing(self) -> None:
        """Measure the launches that follow, until :meth:`end_timing`."""

    def end_timing(self) -> Callable[[], int]:
        """Stop measuring; the result, called after :meth:`finish`, gives nanoseconds of kernels."""

    def finish(self) -> None:
        """Wait for everything enqueued; asynchronous errors are raised here."""

    def close(self) -> None:
        """Release the device."""


@runtime_checkable
class ShowsMemory(Protocol):
    """A driver whose memory this process may look at: nothing has to be copied from the device."""

    def show(self, buffer: Buffer, byte_offset: int, nbytes: int) -> memoryview:
        """The bytes where they lie, after all earlier launches, until the next call."""


@runtime_checkable
class OpensMemory(Protocol):
    """A driver whose memory this process may fill: nothing has to be copied to the device."""

    def opens_memory(self) -> bool:
        """Whether this device's memory may be."""

    def open_memory(
        self, buffer: Buffer, byte_offset: int, nbytes: int
    ) -> AbstractContextManager[memoryview]:
        """The bytes where they lie, after all earlier launches, to be overwritten, all of them.

        Nothing else may be asked of the driver meanwhile. The device has them when that ends.
        """


@runtime_checkable
class Gathers(Protocol):
    """A driver that hands on what is enqueued together with what follows it.

    What waits for the device hands it on as well; who goes to do something else, says so.
    """

    def flush(self) -> None:
        """Let everything enqueued begin; what fails there is raised here."""
