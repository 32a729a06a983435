"""The interface every platform implements: ``tapml_targets.<platform>.driver``.

A platform folder holds ``driver.py`` with two functions::

    def list_devices() -> list[DeviceDescription]: ...
    def open_device(description: DeviceDescription) -> Driver: ...

and ``codegen.py``, which only ``tapml.compiler`` imports. The generic code never asks which
platform it talks to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.limits import Count, Limits

# Each driver defines its own classes for these; generic code only passes them back.
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
        ``gpu``, ``accelerator``, ``cpu``, ``simulated`` (it executes the kernels' text on a
        processor; chosen by default where the platform has no other device) or ``checker`` (a
        simulator never chosen by default).
    driver_version
        Version text of driver and platform.
    limits
        Bounds and features.
    details
        Other facts that the driver states, for people and for the fingerprint.
    """

    platform: str
    index: Count
    name: str
    vendor_platform: str
    device_type: str
    driver_version: str
    limits: Limits
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BufferUse:
    """A window on device memory handed to a kernel as a pointer.

    The `behind` bytes after it are a guard band that is checked for stray writes. A platform that
    confines a kernel to its window includes them in the window.
    """

    buffer: Buffer
    byte_offset: int
    nbytes: int
    behind: int = 0


@dataclass(frozen=True)
class TensorUse:
    """A window on device memory handed to a kernel as a tensor with shape and dtype."""

    buffer: Buffer
    byte_offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ScalarUse:
    """A number handed to a kernel as `dtype`, rounded to it."""

    value: int | float
    dtype: str


KernelArgument: TypeAlias = BufferUse | TensorUse | ScalarUse


class BoundLaunch(NamedTuple):
    """A kernel with its arguments: `grid` blocks of `block` threads.

    `dynamic_shared_bytes` are 0 on a device without the feature ``dynamic_shared_memory``.
    """

    kernel: LoadedKernel
    arguments: tuple[KernelArgument, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0

    @property
    def threads(self) -> tuple[int, int, int]:
        """Threads along each axis."""
        (x, y, z), (bx, by, bz) = self.grid, self.block
        return x * bx, y * by, z * bz


class Driver(Protocol):
    """One open device. All calls come from one thread; launches may be asynchronous.

    Attributes
    ----------
    description
        The device as it was opened.
    dialects
        What modules it loads, and what kind of code each of these dialects is.
    """

    description: DeviceDescription
    dialects: Mapping[str, ModuleKind]

    def allocate(self, nbytes: int) -> Buffer:
        """Reserve at least `nbytes` (and at least one) bytes of device memory."""

    def nbytes(self, buffer: Buffer) -> int:
        """Bytes that may be used of `buffer`."""

    def free(self, buffer: Buffer) -> None:
        """Release memory, after the work that uses it."""

    def write(self, buffer: Buffer, byte_offset: int, data: memoryview) -> None:
        """Copy `data` to the device. `data` may be reused when this returns."""

    def read(self, buffer: Buffer, byte_offset: int, nbytes: int) -> memoryview:
        """Copy from the device, after all earlier launches."""

    def read_into(self, buffer: Buffer, byte_offset: int, target: memoryview) -> None:
        """Copy from the device, after all earlier launches, filling the writable `target`.

        Into reused memory this is many times faster than :meth:`read`, whose fresh memory has to be
        paged in.
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
        """Enqueue a kernel without dynamic shared memory: `grid` blocks of `block` threads."""

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """Prepare launches, to be enqueued in order any number of times."""

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
class HostReadable(Protocol):
    """A driver whose memory this process can read in place, without a copy from the device."""

    def show(self, buffer: Buffer, byte_offset: int, nbytes: int) -> memoryview:
        """A view of device memory, after all earlier launches; valid until the next call."""


@runtime_checkable
class BatchesCommands(Protocol):
    """A driver that submits enqueued commands together with those that follow.

    A call that waits for the device submits them as well; otherwise the caller flushes.
    """

    def flush(self) -> None:
        """Submit everything enqueued; its errors are raised here."""
