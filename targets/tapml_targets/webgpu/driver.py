"""The WebGPU platform: WGSL on Vulkan, Metal or Direct3D 12, through wgpu.

Commands take their places in order and return; :meth:`WebGPUDriver.read` and
:meth:`WebGPUDriver.finish` wait. A sequence of launches is one submission, together with what is
read behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.driver import BoundLaunch, DeviceDescription, KernelArgument
from tapml_targets.errors import (
    DeviceLostError,
    InputError,
    NoSuchDeviceError,
    SetupError,
    TapmlError,
)
from tapml_targets.installed import install_hint
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.webgpu.discovery import import_wgpu, list_adapters
from tapml_targets.webgpu.failures import caught, error_log, failure

if TYPE_CHECKING:
    from tapml_targets.webgpu.binding import LaunchSequence
    from tapml_targets.webgpu.commands import Queries
    from tapml_targets.webgpu.memory import DeviceBuffer
    from tapml_targets.webgpu.programs import LoadedKernel

REMEDY: Final = (
    "install a Vulkan driver, e.g. Debian's mesa-vulkan-drivers, whose lavapipe needs no GPU, or "
    "chromium, which brings SwiftShader"
)


def list_devices() -> list[DeviceDescription]:
    """All adapters of this machine: hardware, then software.

    Raises
    ------
    SetupError
        If wgpu is not installed.
    """
    from tapml_targets.webgpu.description import describe

    return [describe(adapter, index) for index, adapter in enumerate(list_adapters())]


def open_device(description: DeviceDescription) -> WebGPUDriver:
    """Open the device that `description` names by index, name and driver.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    SetupError
        If it does not open.
    """
    from tapml_targets.webgpu.description import describe

    adapters = list(enumerate(list_adapters()))
    # The index is the first guess; drivers may come and go between two processes.
    adapters.sort(key=lambda pair: pair[0] != description.index)
    for index, adapter in adapters:
        found = describe(adapter, index)
        if (found.name, found.vendor_platform, found.driver_version) == (
            description.name,
            description.vendor_platform,
            description.driver_version,
        ):
            return WebGPUDriver(adapter, found)
    raise NoSuchDeviceError(
        f"the WebGPU device {description.name!r} of {description.vendor_platform} "
        f"({description.driver_version}) is not here; `tapml devices` lists what is; "
        f"{install_hint('webgpu')} brings wgpu up to date"
    )


class WebGPUDriver:
    """One open WebGPU device; see :class:`tapml_targets.driver.Driver`.

    Attributes
    ----------
    stand_ins
        Windows that launches could not be given as they are, and that were copied for each.
    """

    def __init__(self, adapter: Any, description: DeviceDescription) -> None:
        from tapml_targets.webgpu.binding import Binder
        from tapml_targets.webgpu.description import FEATURES, TIMESTAMPS
        from tapml_targets.webgpu.memory import ByteMover
        from tapml_targets.webgpu.programs import Builder
        from tapml_targets.webgpu.staging import Staging
        from tapml_targets.webgpu.submission import Submissions
        from tapml_targets.webgpu.uploads import Uploader

        self._wgpu = wgpu = import_wgpu()
        self._caught = caught(wgpu)
        self._log = error_log()
        self.description = description
        offered = set(adapter.features)
        try:
            self._device = adapter.request_device_sync(
                required_features=sorted(offered & {*FEATURES, TIMESTAMPS}),
                # Without asking one gets the standard's defaults, whatever the device has.
                required_limits=dict(adapter.limits),
            )
        except self._caught as error:
            raise SetupError(
                f"{description.vendor_platform} lists {description.name} but does not open it: "
                f"{failure(description.name, 'opening', error)}"
            ) from None
        self._queue = self._device.queue
        self._has_timestamps = TIMESTAMPS in offered
        self._submissions = Submissions(self._device, description.name, self._caught)
        self._staging = Staging(wgpu, self._device, self._submissions)
        self._mover = ByteMover(wgpu, self._device, description.limits.offset_alignment or 256)
        self._builder = Builder(wgpu, self._device, description)
        self._binder = Binder(wgpu, self._device, description, self._builder, self._mover)
        self._uploader = Uploader(self._queue, self._mover, self._staging, self._submissions)
        self._timed: list[Queries] | None = None
        self._began = 0
        self._frees = self._allocated = 0
        self.stand_ins = 0

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """See :meth:`Driver.allocate`."""
        limits = self.description.limits
        if nbytes < 0 or nbytes > limits.max_buffer_bytes:
            raise InputError(
                f"cannot allocate {nbytes} bytes: one buffer on {self.description.name} has at "
                f"most {limits.max_buffer_bytes}"
            )
        if limits.memory_bytes and self._allocated + nbytes > limits.memory_bytes:
            # A driver for processors promises memory that the machine does not have.
            raise SetupError(
                f"{self.description.name} has no room for {nbytes} bytes: {self._allocated} of "
                f"{limits.memory_bytes} are taken; free buffers or use a smaller model"
            )
        from tapml_targets.webgpu.memory import DeviceBuffer

        with self._told(f"allocating {nbytes} bytes"):
            buffer = DeviceBuffer(self._mover.room(nbytes), nbytes)
        self._allocated += nbytes
        return buffer

    def nbytes(self, buffer: DeviceBuffer) -> int:
        """See :meth:`Driver.nbytes`."""
        return buffer.nbytes

    def free(self, buffer: DeviceBuffer) -> None:
        """See :meth:`Driver.free`."""
        self._frees += 1
        self._allocated -= 0 if buffer.freed else buffer.nbytes
        with self._told("freeing a buffer"):
            try:
                # wgpu ends the process over work that is submitted when its memory is gone.
                self._submissions.submit()
            finally:
                buffer.release()

    def write(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        """See :meth:`Driver.write`."""
        data = memoryview(data).cast("B")
        buffer.check(byte_offset, len(data), "write")
        with self._told(f"writing {len(data)} bytes"):
            self._uploader.write(buffer, byte_offset, data)

    def read(self, buffer: DeviceBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`Driver.read`."""
        buffer.check(byte_offset, nbytes, "read")
        data = memoryview(bytearray(nbytes))
        self.read_into(buffer, byte_offset, data)
        return data

    def read_into(self, buffer: DeviceBuffer, byte_offset: int, target: memoryview) -> None:
        """See :meth:`Driver.read_into`."""
        target = memoryview(target).cast("B")
        buffer.check(byte_offset, len(target), "read")
        with self._told(f"reading {len(target)} bytes"):
            self._staging.read_into(buffer.memory, byte_offset, target)
        self._uploader.waited()
        self._raise_logged("the work before this point")

    def fill(self, buffer: DeviceBuffer, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """See :meth:`Driver.fill`."""
        buffer.check(byte_offset, nbytes, "fill")
        if not pattern:
            raise InputError("fill: the pattern must hold at least one byte")
        with self._told(f"filling {nbytes} bytes"):
            self._uploader.fill(buffer, byte_offset, nbytes, pattern)

    def copy(
        self,
        source: DeviceBuffer,
        source_offset: int,
        target: DeviceBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        """See :meth:`Driver.copy`."""
        source.check(source_offset, nbytes, "copy from")
        target.check(target_offset, nbytes, "copy to")
        what = f"copying {nbytes} bytes"
        mover = self._mover
        with self._told(what):
            commands = (
                mover.move_within(source.memory, source_offset, target_offset, nbytes)
                if source is target
                else mover.move(source.memory, source_offset, target.memory, target_offset, nbytes)
            )
            self._submissions.add(commands, lambda: what)

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """See :meth:`Driver.load`."""
        # It may take seconds, in which the device has something to do.
        self.flush()
        return self._builder.load(module, kernels)

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
        with self._told("binding the arguments of kernels"):
            return self._binder.bind(launches)

    def launch_all(self, sequence: LaunchSequence) -> None:
        """See :meth:`Driver.launch_all`; all of it is one submission."""
        sequence.check(self._frees)
        if self._timed is None:
            self._submissions.add(sequence.commands, lambda: sequence.what)
        else:
            self._launch_timed(sequence, self._timed)
        self.stand_ins += sequence.stand_ins

    def flush(self) -> None:
        """See :meth:`tapml_targets.driver.Gathers.flush`."""
        self._submissions.submit()

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`.

        With timestamps, of each pass from its first kernel to its last; without, by the clock from
        one wait to the next.
        """
        self._timed = []
        if not self._has_timestamps:
            self.finish()
        self._began = time.perf_counter_ns()

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        timed, self._timed = self._timed or [], None
        if not self._has_timestamps:
            self.finish()
            passed = time.perf_counter_ns() - self._began
            return lambda: passed

        def elapsed() -> int:
            from tapml_targets.webgpu.timing import nanoseconds

            with self._told("reading timestamps"):
                return nanoseconds(self._staging, self._queue, timed)

        return elapsed

    def finish(self) -> None:
        """See :meth:`Driver.finish`."""
        what = "the work before this point"
        with self._told(what):
            self._staging.wait()
        self._uploader.waited()
        self._raise_logged(what)

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        try:
            # A device that is lost needs no waiting for.
            with suppress(DeviceLostError):
                self.finish()
        finally:
            self._timed = None
            self._submissions.drop()
            self._staging.release()
            del self._binder, self._builder, self._mover, self._uploader
            self._device.destroy()
            # wgpu logs that a device it was told to destroy is lost.
            self._log.take()

    def _launch_timed(self, sequence: LaunchSequence, timed: list[Queries]) -> None:
        from tapml_targets.webgpu.commands import Queries, count_passes

        self.flush()
        queries = None
        with self._told(sequence.what):
            if self._has_timestamps and (passes := count_passes(sequence.commands)):
                queries = Queries(self._wgpu, self._device, passes)
                timed.append(queries)
            self._submissions.submit(sequence.commands, lambda: sequence.what, queries)

    def _raise_logged(self, what: str) -> None:
        if self._log:
            raise failure(self.description.name, what, self._log.take())

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Make what wgpu raises an error that says what was being done."""
        try:
            yield
        except TapmlError:
            raise
        except self._caught as error:
            raise failure(self.description.name, what, error) from None
