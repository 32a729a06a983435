"""Prepares launches: windows on memory become bind groups, scalars a uniform buffer.

WebGPU binds a window that starts at a multiple of its alignment, and lets one dispatch use a buffer
in one way only: read by all of its bindings, or written by some. So:

- a `read` window on a buffer that the same launch writes elsewhere is bound as if it were written,
  by a variant of the pipeline; nothing is copied;
- if the two overlap, or a window is not aligned, a stand-in is copied to before the dispatch and,
  if it is written, from after it. Stand-ins are counted, since they cost time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tapml_targets.driver import BoundLaunch, BufferUse, DeviceDescription
from tapml_targets.errors import InputError, LimitExceededError
from tapml_targets.webgpu.commands import Command, Dispatch
from tapml_targets.webgpu.memory import ByteMover, DeviceBuffer, rounded
from tapml_targets.webgpu.module_text import READ_WRITE
from tapml_targets.webgpu.programs import Builder, LoadedKernel
from tapml_targets.webgpu.uniforms import Uniforms, kinds, uniform_bytes


@dataclass
class LaunchSequence:
    """Commands of consecutive launches.

    Attributes
    ----------
    commands
        In order.
    names
        The kernels, for messages.
    stand_ins
        Windows that are copied to other memory at each run.
    variants
        Read bindings that a pipeline's variant counts as written.
    buffers
        The buffers of the windows.
    frees
        How many buffers the device had freed when `buffers` were last found to be there.
    """

    commands: tuple[Command, ...]
    names: tuple[str, ...]
    stand_ins: int
    variants: int
    buffers: tuple[DeviceBuffer, ...]
    frees: int = -1

    def check(self, frees: int) -> None:
        """Raise InputError if a buffer has been freed since; `frees` counts those of the device."""
        if frees == self.frees:
            return
        if any(buffer.freed for buffer in self.buffers):
            raise InputError(f"{self.what}: a buffer it was bound to has been freed; bind it again")
        self.frees = frees

    @property
    def what(self) -> str:
        """The sequence in a few words."""
        names = list(dict.fromkeys(self.names))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        kernels = ", ".join(map(repr, names[:4])) + more
        return f"{'kernel' if len(names) == 1 else 'kernels'} {kernels}"


@dataclass
class _Window:
    """The memory of a binding: `nbytes` of `buffer` from `start`, or of a stand-in."""

    use: BufferUse
    buffer: DeviceBuffer
    start: int
    nbytes: int
    written: bool
    stand_in: Any = None

    def overlaps(self, other: _Window) -> bool:
        return (
            self.buffer is other.buffer
            and self.start < other.start + rounded(other.nbytes)
            and other.start < self.start + rounded(self.nbytes)
        )


class Binder:
    """Makes sequences on one open device."""

    def __init__(
        self,
        wgpu: Any,
        device: Any,
        description: DeviceDescription,
        builder: Builder,
        mover: ByteMover,
    ) -> None:
        self._wgpu = wgpu
        self._device = device
        self._description = description
        self._builder = builder
        self._mover = mover
        self._uniform_alignment = int(device.limits["min-uniform-buffer-offset-alignment"])
        self._empty: Any = None

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """Check launches and make them commands.

        Raises
        ------
        InputError
            If the arguments are not the kernel's, or two written windows overlap.
        LimitExceededError
            If a window or a grid is larger than the device allows.
        """
        uniforms = Uniforms(self._uniform_alignment)
        prepared = [
            (launch, *self._windows(launch), uniforms.place(launch))
            for launch in launches
            if 0 not in launch.grid
        ]
        uniform = uniforms.memory(self._wgpu, self._device)
        commands: list[Command] = []
        buffers: dict[int, DeviceBuffer] = {}
        stand_ins = variants = 0
        for launch, windows, promoted, place in prepared:
            behind: list[Command] = []
            for window in windows:
                buffers[id(window.buffer)] = window.buffer
                if window.stand_in is None:
                    continue
                stand_ins += 1
                there = window.buffer.memory, window.start
                nbytes = window.nbytes
                commands += self._mover.move(*there, window.stand_in, 0, nbytes)
                if window.written:
                    behind += self._mover.move(window.stand_in, 0, *there, nbytes)
            variants += len(promoted)
            commands.append(self._dispatch(launch, windows, promoted, uniform, place))
            commands += behind
        names = tuple(launch.kernel.name for launch in launches)
        return LaunchSequence(tuple(commands), names, stand_ins, variants, tuple(buffers.values()))

    def _windows(self, launch: BoundLaunch) -> tuple[list[_Window], frozenset[int]]:
        """A window per storage binding, and the read ones to be bound as written."""
        kernel: LoadedKernel = launch.kernel
        access = kernel.text.access
        uses = launch.arguments[: len(access)]
        if len(uses) != len(access) or not all(isinstance(use, BufferUse) for use in uses):
            raise InputError(
                f"kernel {kernel.name!r} takes {len(access)} buffers first, then "
                f"{len(kernel.text.scalars)} scalars; got {kinds(launch)}"
            )
        if launch.block != kernel.text.block:
            raise InputError(
                f"kernel {kernel.name!r} has workgroups of {kernel.text.block} threads, a launch "
                f"asks for {launch.block}"
            )
        windows = [
            self._window(kernel, index, use, how == READ_WRITE)
            for index, (use, how) in enumerate(zip(uses, access, strict=True))
            if isinstance(use, BufferUse)
        ]
        return windows, self._settle(kernel, windows)

    def _window(self, kernel: LoadedKernel, index: int, use: BufferUse, written: bool) -> _Window:
        buffer: DeviceBuffer = use.buffer
        buffer.check(use.byte_offset, use.nbytes, f"kernel {kernel.name!r}, buffer {index}")
        limits = self._description.limits
        if limits.max_binding_bytes and use.nbytes > limits.max_binding_bytes:
            raise LimitExceededError(
                f"kernel {kernel.name!r}: buffer {index} is bound with {use.nbytes} bytes; "
                f"{self._description.name} binds at most {limits.max_binding_bytes}"
            )
        nbytes = use.nbytes
        if nbytes and use.behind and not kernel.text.asks_length:
            # A stray write is clamped to the last bound word, which has to be in a guard band.
            most = min(buffer.nbytes - use.byte_offset, limits.max_binding_bytes or buffer.nbytes)
            nbytes = min(nbytes + use.behind, most)
        window = _Window(use, buffer, use.byte_offset, nbytes, written)
        if nbytes and use.byte_offset % max(1, limits.offset_alignment):
            window.stand_in = self._mover.room(nbytes)
        return window

    def _settle(self, kernel: LoadedKernel, windows: Sequence[_Window]) -> frozenset[int]:
        """Give stand-ins to overlapping windows; return read windows on written buffers."""
        shown = [window for window in windows if window.nbytes]
        written = [window for window in shown if window.written]
        for index, window in enumerate(written):
            for other in written[:index]:
                if window.overlaps(other):
                    raise InputError(
                        f"kernel {kernel.name!r} is to write two windows that overlap, at bytes "
                        f"{other.start} and {window.start} of one buffer; give them separate memory"
                    )
        busy = {id(window.buffer) for window in written if window.stand_in is None}
        promoted: list[_Window] = []
        for window in shown:
            if window.written or window.stand_in is not None or id(window.buffer) not in busy:
                continue
            if any(window.overlaps(other) for other in (*written, *promoted)):
                window.stand_in = self._mover.room(window.nbytes)
            else:
                promoted.append(window)
        return frozenset(
            index
            for index, window in enumerate(windows)
            if any(window is each for each in promoted)
        )

    def _dispatch(
        self,
        launch: BoundLaunch,
        windows: Sequence[_Window],
        promoted: frozenset[int],
        uniform: Any,
        place: int,
    ) -> Dispatch:
        kernel: LoadedKernel = launch.kernel
        pipeline, layout = self._builder.pipeline(kernel, promoted)
        shown = [self._shown(window) for window in windows]
        if kernel.text.has_uniform:
            size = uniform_bytes(kernel.text)
            shown.append({"buffer": uniform, "offset": place, "size": size})
        group = self._device.create_bind_group(
            layout=layout,
            entries=[{"binding": index, "resource": each} for index, each in enumerate(shown)],
        )
        return Dispatch(pipeline, group, self._grid(kernel, launch.grid))

    def _shown(self, window: _Window) -> dict[str, Any]:
        if not window.nbytes:
            # A binding cannot be empty; a kernel over no elements does not read it.
            if self._empty is None:
                self._empty = {True: self._mover.room(16), False: self._mover.room(16)}
            return {"buffer": self._empty[window.written], "offset": 0, "size": 16}
        size = rounded(window.nbytes)
        if window.stand_in is not None:
            return {"buffer": window.stand_in, "offset": 0, "size": size}
        return {"buffer": window.buffer.memory, "offset": window.start, "size": size}

    def _grid(self, kernel: LoadedKernel, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        x, y, z = grid
        # The limit along y: a folded grid may be wider along x only before it is folded.
        most = self._description.limits.max_grid[1] or 65535
        if kernel.text.packs_grid:
            if z != 1:
                raise InputError(
                    f"kernel {kernel.name!r} folds its grid into z and was launched over {grid}"
                )
            z = -(-x // most)
            x = -(-x // z)
        if max(x, y, z) > most:
            raise LimitExceededError(
                f"kernel {kernel.name!r} is launched over {grid} workgroups; "
                f"{self._description.name} runs at most {most} along each axis"
            )
        return x, y, z
