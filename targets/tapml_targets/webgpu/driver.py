"""The WebGPU platform: WGSL on Vulkan, Metal or Direct3D 12, through wgpu.

Commands take their places in order and return; :meth:`WebGPUDriver.read` and
:meth:`WebGPUDriver.finish` wait. A sequence of launches is one submission, together with what is
read behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tapml_targets.description import find_again
from tapml_targets.driver import BoundLaunch, DeviceDescription, KernelArgument
from tapml_targets.errors import (
    DeviceLostError,
    SetupError,
    TapmlError,
)
from tapml_targets.installed import install_hint
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.limits import Limits
from tapml_targets.memory_commands import MemoryCommands
from tapml_targets.vulkan_loader.validation_log import buffer_name
from tapml_targets.webgpu.discovery import import_wgpu, list_adapters
from tapml_targets.webgpu.failures import caught, error_log, failure
from tapml_targets.webgpu.narrowing import required_limits

if TYPE_CHECKING:
    from tapml_targets.webgpu.binding import LaunchSequence
    from tapml_targets.webgpu.commands import Queries
    from tapml_targets.webgpu.memory import DeviceBuffer
    from tapml_targets.webgpu.programs import LoadedKernel

_FREED_BYTES: Final = 256 << 20
"""Freed memory that may wait for its work to end; more, and :meth:`WebGPUDriver.free` waits."""
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

    Where its limits are narrower than the device's, as those of a profile are, it is opened
    with them: the implementation itself refuses what exceeds them.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    SetupError
        If it does not open.
    """
    from tapml_targets.limit_profiles import LimitProfile
    from tapml_targets.webgpu.description import describe

    hint = f"{install_hint('webgpu')} brings wgpu up to date"
    adapter, found = find_again(description, list_adapters(), describe, hint)
    limits = LimitProfile("", "", description.limits).within(found.limits)
    return WebGPUDriver(adapter, replace(found, limits=limits), found.limits)


class WebGPUDriver(MemoryCommands["DeviceBuffer"]):
    """One open WebGPU device; see :class:`tapml_targets.driver.Driver`.

    Attributes
    ----------
    stand_ins
        Windows that could not be bound directly and were copied for each launch.
    """

    def __init__(
        self, adapter: Any, description: DeviceDescription, stated: Limits | None = None
    ) -> None:
        from tapml_targets.webgpu.binding import Binder
        from tapml_targets.webgpu.description import FEATURES, TIMESTAMPS
        from tapml_targets.webgpu.memory import ByteMover
        from tapml_targets.webgpu.programs import DIALECTS, Builder
        from tapml_targets.webgpu.staging import Staging
        from tapml_targets.webgpu.submission import Submissions
        from tapml_targets.webgpu.uploads import Uploader

        self._wgpu = wgpu = import_wgpu()
        self._caught = caught(wgpu)
        self._log = error_log()
        self.description = description
        self.dialects = DIALECTS
        offered, limits = set(adapter.features), description.limits
        try:
            self._device = adapter.request_device_sync(
                required_features=sorted(
                    {f for f in offered & FEATURES.keys() if FEATURES[f] in limits.features}
                    | (offered & {TIMESTAMPS})
                ),
                required_limits=required_limits(adapter.limits, limits, stated or limits),
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
        self._buffers = self._frees = self._allocated = self._freed = 0
        self.stand_ins = 0

    def _allocate(self, nbytes: int) -> DeviceBuffer:
        limits = self.description.limits
        if limits.memory_bytes and self._allocated + nbytes > limits.memory_bytes:
            # A driver for processors promises memory that the machine does not have.
            raise SetupError(
                f"{self.description.name} has no room for {nbytes} bytes: {self._allocated} of "
                f"{limits.memory_bytes} are taken; free buffers or use a smaller model"
            )
        from tapml_targets.webgpu.memory import DeviceBuffer

        with self._told(f"allocating {nbytes} bytes"):
            self._buffers += 1
            label = buffer_name(self._buffers)
            buffer = DeviceBuffer(self._mover.room(nbytes, label), nbytes)
        self._allocated += nbytes
        return buffer

    def free(self, buffer: DeviceBuffer) -> None:
        """See :meth:`Driver.free`."""
        self._frees += 1
        self._allocated -= buffer.nbytes
        self._freed += buffer.nbytes
        with self._told("freeing a buffer"):
            try:
                # wgpu ends the process over work that is submitted when its memory is gone.
                self._submissions.submit()
            finally:
                buffer.release()
        if self._freed > _FREED_BYTES:
            # wgpu returns memory to the system only after a wait for the work that used it.
            self.finish()

    def _write(self, buffer: DeviceBuffer, byte_offset: int, data: memoryview) -> None:
        with self._told(f"writing {len(data)} bytes"):
            self._uploader.write(buffer, byte_offset, data)

    def _read_into(self, buffer: DeviceBuffer, byte_offset: int, target: memoryview) -> None:
        with self._told(f"reading {len(target)} bytes"):
            self._staging.read_into(buffer.memory, byte_offset, target)
        self._uploader.waited()
        self._raise_logged("the work before this point")

    def _fill(
        self, buffer: DeviceBuffer, byte_offset: int, nbytes: int, pattern: bytes, phase: int = 0
    ) -> None:
        pattern = pattern[phase:] + pattern[:phase]
        with self._told(f"filling {nbytes} bytes"):
            self._uploader.fill(buffer, byte_offset, nbytes, pattern)

    def _copy(
        self,
        source: DeviceBuffer,
        source_offset: int,
        target: DeviceBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        what = f"copying {nbytes} bytes"
        mover = self._mover
        with self._told(what):
            commands = (
                mover.move_within(source.memory, source_offset, target_offset, nbytes)
                if source is target
                else mover.move(source.memory, source_offset, target.memory, target_offset, nbytes)
            )
            self._submissions.add(commands, lambda: what)

    def _copy_onto_itself(
        self, buffer: DeviceBuffer, source_offset: int, target_offset: int, nbytes: int
    ) -> None:
        self._copy(buffer, source_offset, buffer, target_offset, nbytes)

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
        """See :meth:`tapml_targets.driver.BatchesCommands.flush`."""
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
        self._freed = 0
        self._uploader.waited()
        self._raise_logged(what)

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        try:
            # There is nothing to wait for on a lost device.
            with suppress(DeviceLostError):
                self.finish()
        finally:
            self._timed = None
            self._submissions.drop()
            self._staging.release()
            del self._binder, self._builder, self._mover, self._uploader
            self._device.destroy()
            # wgpu logs a destroyed device as lost.
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
        """Turn wgpu's exceptions into errors that name the operation."""
        try:
            yield
        except TapmlError:
            raise
        except self._caught as error:
            raise failure(self.description.name, what, error) from None
